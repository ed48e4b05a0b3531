//! walrelay takes over the slot and the position of a Debezium Server that is stopped under load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use walrelay_testkit::{CommitLog, SlotWatch, eventually};
use walrelay_throwaway::Signal;

use crate::rig::{PATIENCE, Relay, Rig, run_command, walrelay};
use crate::server::{Debezium, SLOT, properties};

/// Properties for the records that walrelay's tests expect: plain text, and topics of the test's
/// own.
fn plain(rig: &Rig) -> String {
    format!(
        "{}debezium.transforms=outbox\n\
         debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
         debezium.transforms.outbox.route.topic.replacement={}$${{routedByValue}}\n\
         debezium.format.key=simplestring\n\
         debezium.format.value=simplestring\n\
         debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter\n",
        properties(rig),
        rig.prefix
    )
}

/// Runs `walrelay import-debezium` as a user would.
pub(crate) fn import(rig: &Rig, properties: &Path) -> PathBuf {
    let config = rig.path("walrelay.toml");
    let output = walrelay(&["import-debezium"])
        .arg(properties)
        .arg("--output-file")
        .arg(&config)
        .output()
        .expect("walrelay runs");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    assert!(report.contains(", 0 not supported\n"), "{report}");
    config
}

/// Starts the relay with the password that the configuration expects.
pub(crate) fn relay(rig: &Rig, config: &Path, log: &str) -> Relay {
    let mut command = run_command(config);
    command
        .args(["--set", "log.format=json"])
        .env("PGPASSWORD", rig.postgres.superuser_password());
    Relay::spawn(&mut command, &rig.path(log))
}

fn hand_over(signal: Signal) {
    let rig = Rig::new(18);
    rig.workload().create_tables();
    let mut debezium = Debezium::start(&rig, &plain(&rig));
    let log = CommitLog::start(&rig.postgres.url(), "judge", &["public.outbox"], false);
    let load = rig.workload().rate(400.0).seed(11).start();
    let slot = SlotWatch::new(&rig.postgres.url(), SLOT);
    let begun = slot.read().expect("a slot").confirmed_flush;
    eventually(PATIENCE, || {
        let moved = slot.read().expect("a slot").confirmed_flush > begun;
        moved && load.written().rows >= 3_000
    });
    debezium.stop(signal);
    // Nobody reads the slot any more, but the walsender may notice that later.
    eventually(PATIENCE, || {
        slot.read().expect("a slot").active_pid.is_none()
    });
    let confirmed = slot.read().expect("a slot").confirmed_flush;

    let config = import(&rig, &debezium.config());
    let relay = relay(&rig, &config, "relay.log");
    relay.streaming();
    let next = load.written().rows + 2_000;
    eventually(PATIENCE, || load.written().rows >= next);
    load.stop();
    slot.wait_until(slot.wal_end(), PATIENCE);

    let history = rig.history();
    let verdict = history.check();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for record in &history.records {
        *times
            .entry(record.id.as_deref().expect("an id"))
            .or_default() += 1;
    }
    let rows = log.ids();
    let open = rows.iter().filter(|row| row.commit >= confirmed).count();
    let repeated = rows
        .iter()
        .filter(|row| times.get(row.id.as_str()).is_some_and(|times| *times > 1));
    let mut last = None;
    for row in repeated {
        assert!(
            row.commit >= confirmed,
            "{} was confirmed by Debezium ({confirmed}) and repeated",
            row.id
        );
        last = Some(row.commit);
    }
    eprintln!(
        "{signal:?}: {verdict}; {open} rows were not confirmed, the last that is there twice was \
         committed at {last:?}, Debezium had confirmed {confirmed}"
    );
    verdict.assert_clean_but_for_ragged();
    assert!(verdict.duplicates <= open);
    // Debezium never confirms its last transaction, however it ends. So repeats must occur.
    assert!(verdict.duplicates > 0, "nothing was repeated");
    relay.ends_well();
    back(&rig, verdict.duplicates);
}

/// Goes back to Debezium without stored offsets: it continues where walrelay stopped.
fn back(rig: &Rig, repeated: usize) {
    let slot = SlotWatch::new(&rig.postgres.url(), SLOT);
    eventually(PATIENCE, || {
        slot.read().expect("a slot").active_pid.is_none()
    });
    let between = rig.workload().seed(12).rows(500).run();
    let _debezium = Debezium::start(rig, &plain(rig));
    let after = rig.workload().seed(13).rows(500).run();
    let verdict = rig.verdict();
    eprintln!(
        "back to Debezium, {} rows before it starts and {} after: {verdict}",
        between.rows, after.rows
    );
    verdict.assert_clean_but_for_ragged();
    assert_eq!(
        verdict.duplicates, repeated,
        "walrelay had confirmed everything"
    );
}

#[test]
#[ignore = "needs Debezium Server: make test-debezium"]
fn a_killed_debezium_server_hands_over() {
    hand_over(Signal::Kill);
}

#[test]
#[ignore = "needs Debezium Server: make test-debezium"]
fn a_stopped_debezium_server_hands_over() {
    hand_over(Signal::Term);
}
