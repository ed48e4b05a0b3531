use std::fs;

use walrelay_testkit::Db;

use crate::rig::{Checked, Rig, output_with};

/// What is wrong with the file alone is said without a server.
#[test]
fn of_the_configuration() {
    let rig = Rig::without_broker(18);
    let config = rig.config();
    let offline = |set: &[&str]| {
        let set = set.iter().flat_map(|set| ["--set", set]);
        let more: Vec<&str> = ["--offline"].into_iter().chain(set).collect();
        Checked::of(&config, &more)
    };
    let fine = offline(&[]);
    assert_eq!(fine.code, Some(0));
    fine.nothing_fails("configuration");
    for (set, item, verdict, words) in [
        (
            &["delivery.garanty=x"][..],
            "configuration/file",
            "fail",
            &["[config-unknown-key]", "guarantee"][..],
        ),
        (
            &["source.url=postgres://h/db?sslmode=sometimes"],
            "configuration/database-url",
            "fail",
            &["[source-url]", "sslmode"],
        ),
        (
            &[
                "source.messages.prefix=outbox",
                "router.debezium.table.fields.additional.placement=nothing:header",
            ],
            "configuration/routes",
            "fail",
            &["[message-column]", "nothing"],
        ),
        (
            &[
                "sink.kafka.security.protocol=SASL_PLAINTEXT",
                "sink.kafka.sasl.mechanism=PLAIN",
                "sink.kafka.sasl.username=u",
                "sink.kafka.sasl.password=p",
            ],
            "configuration/kafka-properties",
            "warn",
            &["SASL_SSL"],
        ),
        (
            &[
                "router.registry.url=https://registry",
                "router.registry.format=json",
                "router.registry.ca_file=/nonexistent",
            ],
            "configuration/registry-ca",
            "fail",
            &["[registry-ca]"],
        ),
    ] {
        offline(set).is(item, verdict, words);
    }
    let state = rig.path("state");
    fs::write(&state, "nonsense").expect("written");
    let state = format!("source.state_file={}", state.display());
    let snapshot = "source.snapshot=initial";
    let dropped = ["a slot that is dropped later", "remove source.snapshot"];
    offline(&[snapshot]).is("configuration/state-file", "warn", &dropped);
    let new = format!("source.state_file={}", rig.path("new").display());
    offline(&[snapshot, &new]).is("configuration/state-file", "pass", &["run makes it"]);
    let checked = offline(&[&state]);
    checked.is("configuration/state-file", "fail", &["[state-file]"]);
    assert_eq!(checked.code, Some(78));
}

/// The table is for people: a line for each item, remedies below, figures at the end.
#[test]
fn the_table_is_for_people() {
    let rig = Rig::without_broker(18);
    rig.workload().create_tables();
    Db::connect(&rig.postgres.url())
        .batch("CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'update')");
    let config = rig.config();
    let set = ["--set", "sink.kind=stdout"];
    let output = output_with("check", &config, &set);
    assert_eq!(output.status.code(), Some(78));
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let failed = text.lines().find(|line| line.starts_with("  FAIL  "));
    let failed = failed.expect("a failure");
    assert!(
        failed.contains("publication-operations")
            && failed.ends_with("[publication-without-insert]"),
        "{text}"
    );
    assert!(text.contains(" help: run ALTER PUBLICATION"), "{text}");
    let last = text.lines().last().expect("a line");
    assert!(
        last.contains(" checks: ") && last.ends_with(" 1 fail"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
}
