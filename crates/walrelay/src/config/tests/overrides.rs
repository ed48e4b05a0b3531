//! Tests of `--set key=value`.

use super::*;

#[test]
fn overrides_win_and_the_last_one_counts() {
    let overrides = [
        "source.slot=first",
        "source.slot=second",
        "source.create=false",
        "source.tables=app.events",
        "delivery.max_in_flight_records=7",
        "sink.kafka.linger.ms=9",
        "sink.kafka.bootstrap.servers=\"x:1\"",
        "router.debezium.route.by.field=kind",
        "source.url=postgres://other/db?options=a=b",
    ];
    // The file's URL names a variable that is not set. The override replaces it, so it is not read.
    let text = LEAST.replace("PGPASSWORD", "NOT_SET");
    let config = parse_set(&text, &overrides).unwrap();
    assert_eq!(config.pipeline.source.slot, "second");
    assert!(!config.pipeline.source.create);
    assert_eq!(config.pipeline.source.tables[0].to_string(), "app.events");
    assert_eq!(config.pipeline.delivery.max_in_flight_records, 7);
    assert_eq!(debezium(&config).options.route_by, "kind");
    assert_eq!(
        config.pipeline.source.url.expose_secret(),
        "postgres://other/db?options=a=b"
    );
    let kafka = kafka(&config.pipeline.sink);
    assert_eq!(kafka.properties.0["linger.ms"], "9");
    assert_eq!(kafka.properties.0["bootstrap.servers"], "x:1");

    let config = parse_set(LEAST, &["source.tables=['a.b', 'c.d']"]).unwrap();
    assert_eq!(config.pipeline.source.tables.len(), 2);
    // An override of `url_file` replaces `url`, and the other way round.
    let config = parse_set(LEAST, &["source.url_file=url"]).unwrap();
    assert_eq!(
        config.pipeline.source.url.expose_secret(),
        "postgres://relay:hunter2@db/app"
    );
    let filed = LEAST.replace("url = ", "url_file = ");
    assert!(parse_set(&filed, &["source.url=postgres://other/db"]).is_ok());
}

#[test]
fn errors_of_overrides_name_the_argument() {
    refused_overrides(
        r#"
        source.slto=x           => config-unknown-key   => source.slto=… => unknown key `source.slto`
        novalue                 => config-override      => same          => the form key=value
        =x                      => config-override      => same          => the form key=value
        source.create=maybe     => config-wrong-type    => same          => wants a boolean
        source.tables=[         => config-override      => same          => not a TOML value
        source.slot="x          => config-override      => same          => not a TOML value
        source.url=hunter2      => config-invalid-value => source.url=…  => must begin with
        source.urll=hunter2     => config-unknown-key   => source.urll=… => unknown key
        source.slot=${NO_SUCH}  => config-env-unset     => same          => NO_SUCH is not set
        "#,
    );
}

#[test]
fn names_of_overrides_may_be_quoted() {
    let config = parse_set(LEAST, &["sink.kafka.\"compression.type\"=zstd"]).unwrap();
    let sink = kafka(&config.pipeline.sink);
    assert_eq!(sink.properties.0["compression.type"], "zstd");
}
