//! Tests of unknown, missing and duplicate keys, wrong types and syntax errors.

use super::*;

#[test]
fn an_unknown_key_is_shown_with_place_line_and_nearest() {
    let text = format!("{LEAST}\n[source2]\n\n[log]\nlevle = \"info\"\n");
    let error = parse(&text).unwrap_err();
    let shown: Vec<String> = error.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "/etc/walrelay/walrelay.toml:9:2: unknown key `source2`\n  9 | [source2]\n    |  ^^^^^^^",
            "/etc/walrelay/walrelay.toml:12:1: unknown key `log.levle`\n  12 | levle = …\n     | ^^^^^",
        ]
    );
    assert_eq!(
        error.problems()[0].help.as_deref(),
        Some("did you mean `source`?")
    );
    assert_eq!(
        error.problems()[1].help.as_deref(),
        Some("did you mean `log.level`?")
    );
}

#[test]
fn the_value_of_an_unknown_key_is_not_shown() {
    // The key may be a misspelt secret. `parse_set` checks that the value is not shown.
    for line in [
        "pasword = \"hunter2\"",
        "x = { y = \"hunter2\" }",
        "\"a=b\" = 'hunter2'",
    ] {
        let (id, _, _, _) = only(parse(
            &LEAST.replace("[source]", &format!("[source]\n{line}")),
        ));
        assert_eq!(id, "config-unknown-key");
    }
    let inline = "source = { url = 'postgres://db', tables = ['o'], pasword = 'hunter2' }\n[sink]\nkind = 'stdout'";
    assert_eq!(only(parse(inline)).0, "config-unknown-key");
}

#[test]
fn unknown_keys_suggest_the_nearest() {
    for [section, line, meant] in cases(
        r#"
        sorce           => x = 1                               => `source`
        log             => formatt = "text"                    => `log.format`
        log             => slot = "x"                          => `source.slot`
        sink            => "topic.prefix" = "x"                => `router.debezium.topic.prefix`
        router.debezium => "route.topic.replacment" = "x"      => `router.debezium.route.topic.replacement`
        router          => "route.by.field" = "x"              => `router.debezium.route.by.field`
        delivery        => max_inflight_bytes = "1MiB"         => `delivery.max_in_flight_bytes`
        sink.kafak      => x = 1                               => the section `sink.kafka`
        sink.redis      => url = "redis://r"                   => `sink.redis.hosts`
        sink.nats       => servers = ["n"]                     => `sink.nats.hosts`
        sink            => brokers = "b:1"                     => `sink.kafka.bootstrap.servers`
        sink.redis      => brokers = ["b:1"]                   => `sink.redis.hosts`
        kafka           => linger = 1                          => the section `sink.kafka`
        http            => port = 9187                         => `http.listen`
        delivery        => inflight = 1                        => `delivery.max_in_flight_records` or `delivery.max_in_flight_bytes`
        delivery        => timeout = "1s"                      => `delivery.drain_timeout`
        poison          => dlq = "x"                           => `poison.topic`
        zzzzzzzz        =>                                     => the sections are source, router, sink, delivery, poison, retention, prune, audit, http, otel, slo, log
        log             => qqqqqqqqqqqqqq = 1                  => the keys of [log] are level, format
        "#,
    ) {
        // Top-level keys must come before the first section.
        let (id, _, what, help) = only(parse(&format!("[{section}]\n{line}\n{LEAST}")));
        assert_eq!(id, "config-unknown-key", "{what}");
        assert!(help.contains(meant), "{what}: {help}");
    }
    for (line, meant) in [
        ("dsn = 'x'", "`source.url`"),
        ("password = 'x'", "`source.password_file`"),
        ("table_names = ['x']", "`source.tables`"),
    ] {
        let text = LEAST.replace("[source]", &format!("[source]\n{line}"));
        let (_, _, _, help) = only(parse(&text));
        assert_eq!(help, format!("did you mean {meant}?"));
    }
    // A key of another kind of sink is no help.
    let (_, _, _, help) = only(parse(&format!("[sink.nats]\nstream = \"x\"\n{LEAST}")));
    assert!(!help.contains("sink.redis.stream"), "{help}");
    let (_, _, _, help) = only(parse(&format!("slot = \"x\"\n{LEAST}")));
    assert_eq!(help, "did you mean `source.slot`?");
}

#[test]
fn errors_of_types_name_the_wanted_type() {
    for [section, line, column, words] in cases(
        r#"
        source     => slot = 3                    => 8  => wants a string, found an integer
        source     => create = "yes"              => 10 => wants a boolean, found a string
        source     => status_interval = 1         => 19 => wants a duration, found an integer
        delivery   => max_in_flight_bytes = 1000  => 23 => wants a size, found an integer
        delivery   => max_in_flight_records = "9" => 25 => wants an integer, found a string
        log        => level = ["info"]            => 9  => found a list
        log        => level = {a = 1}             => 9  => found a table
        log        => level = 2020-01-01          => 9  => found a date
        sink.kafka => "linger.ms" = [1]           => 15 => wants a string, number or boolean
        "#,
    ) {
        let least = LEAST.replace(&format!("[{section}]"), &format!("[{section}]\n{line}"));
        let text = if least == LEAST {
            format!("[{section}]\n{line}{LEAST}")
        } else {
            least
        };
        let (id, at, what, help) = only(parse(&text));
        assert_eq!(id, "config-wrong-type", "{what}");
        assert!(at.ends_with(&format!(":{column}")), "{line}: {at}");
        assert!(what.contains(words), "{what}");
        assert!(!help.is_empty());
    }
    let (_, at, what, _) = only(parse(&LEAST.replace("\"public.outbox\"", "\"a.b\",\n  7")));
    assert_eq!(at, "walrelay.toml:5:3");
    assert!(what.contains("something else in its list"), "{what}");
    let (_, _, what, _) = only(parse(&format!("log = 3\n{LEAST}")));
    assert_eq!(what, "`log` is a section, not a value");
}

#[test]
fn missing_keys_are_all_named_with_examples() {
    let found = problems(parse(""));
    let found = found.iter();
    let found = found.map(|(_, _, what, help)| [what.as_str(), help.as_str()]);
    let expected = cases(
        r#"
        missing key `source.url`    => add to [source]: url = "postgres://relay:${PGPASSWORD}@localhost:5432/app"
        missing key `source.tables` => add to [source]: tables = ["public.outbox"]
        missing key `sink.kafka.bootstrap.servers` => add to [sink.kafka]: "bootstrap.servers" = "localhost:9092"
        "#,
    );
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn syntax_errors_stand_alone_and_hide_open_strings() {
    let (id, at, what, _) = only(parse("[source\nurl = 3\n"));
    assert_eq!(
        (id.as_str(), at.as_str()),
        ("config-syntax", "walrelay.toml:1:8")
    );
    assert!(what.starts_with("not valid TOML: "), "{what}");
    for text in [
        "[source]\nurl = \"postgres://relay:hunter2@db\n",
        "[source]\nurl = \"\"\"\nhunter2 \\q\n\"\"\"\n",
        "[sink.kafka]\n\"sasl.password\" = hunter2\n",
        "[source]\nurl = \"postgres://relay:hunter2@db\" x\n",
    ] {
        // `parse_set` checks that the secret is not shown.
        assert_eq!(only(parse(text)).0, "config-syntax");
    }
    // An array that is not closed is reported where it begins.
    for (text, at) in [
        (
            "[source]\ntables = [\"a]\", # [\n'b'\n\n[sink.kafka]\n",
            "2:10",
        ),
        ("[source]\ntables = [\"a\"\nslot = \"b\"\n", "2:10"),
        (
            "[source]\ntables = [\"\"\"\n]\"\"\"\n\"slot\" = \"b\"\n",
            "2:10",
        ),
        // A comma is missing between two elements.
        ("[source]\ntables = [\n\"a\"\n\"b\"]\n", "4:1"),
    ] {
        let (id, found, ..) = only(parse(text));
        assert_eq!(
            (id.as_str(), found),
            ("config-syntax", format!("walrelay.toml:{at}")),
            "{text}"
        );
    }
    let twice = format!("{LEAST}\n\"bootstrap.servers\" = \"b\"\n");
    assert_eq!(only(parse(&twice)).0, "config-syntax");
    let twice = format!("{LEAST}\nbootstrap.servers = \"b\"\n");
    assert_eq!(only(parse(&twice)).0, "config-duplicate-key");
}
