use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_relay::TableName;

use super::*;
use crate::commands::check::item::Verdict;
use crate::postgres::{ServerFacts, SlotFacts, SlotRow, Transaction};

const GIB: u64 = 1 << 30;

/// What the checks look at, to be changed by a test.
struct Fixture {
    wanted: Wanted,
    config: Config,
    facts: Facts,
    survey: Survey,
}

impl Fixture {
    /// A server on which all is well.
    fn new() -> Self {
        let text = "[source]\nurl = \"postgres://db/app\"\ntables = [\"public.outbox\"]\n\
                    [sink.kafka]\n\"bootstrap.servers\" = \"b:9092\"\n";
        let config = Config::parse(text, "walrelay.toml", &[], &|_| None).unwrap();
        let wanted = crate::commands::connect::wanted(&config);
        let slot = SlotFacts {
            kind: "logical".into(),
            plugin: Some("pgoutput".into()),
            database: Some("app".into()),
            active_pid: None,
            confirmed: Some(Lsn::new(GIB)),
            restart: Some(Lsn::new(GIB)),
            wal_status: Some("reserved".into()),
            safe_wal_size: None,
            invalidated: None,
            catalog_xmin: None,
            failover: Some(false),
        };
        let facts = Facts {
            server: ServerFacts {
                major: 18,
                wal_level: "logical".into(),
                database: "app".into(),
                wal_end: Some(Lsn::new(GIB)),
                max_slot_wal_keep_size: Some(50 * GIB),
                ..ServerFacts::default()
            },
            tables: vec![(
                TableName {
                    schema: "public".into(),
                    name: "outbox".into(),
                },
                None,
            )],
            publication: None,
            slot: Some(slot),
        };
        let survey = Survey::default()
            .with("server_version", "18.1", "")
            .with("max_wal_senders", "10", "")
            .with("max_replication_slots", "10", "")
            .with("max_wal_size", "1024", "MB")
            .with("wal_sender_timeout", "60000", "ms")
            .with("idle_replication_slot_timeout", "0", "s")
            .with("synchronized_standby_slots", "", "");
        Self {
            wanted,
            config,
            facts,
            survey,
        }
    }

    fn seen(&self) -> Seen<'_> {
        Seen {
            wanted: &self.wanted,
            config: &self.config,
            facts: &self.facts,
            survey: &self.survey,
            moment: Moment::Start {
                known: None,
                accept_gap: false,
            },
        }
    }

    fn slot(&mut self) -> &mut SlotFacts {
        self.facts.slot.as_mut().unwrap()
    }
}

/// The verdict, and that what did not pass has a remedy.
#[track_caller]
fn verdict(check: &Check) -> &'static str {
    assert_eq!(
        check.verdict == Verdict::Pass,
        check.remedy.is_none(),
        "{check:?}"
    );
    check.verdict.name()
}

#[test]
fn a_server_on_which_all_is_well_passes() {
    let fixture = Fixture::new();
    let seen = fixture.seen();
    for check in [
        server::version(&seen),
        server::logical(&seen),
        server::replication(&seen, Ok(())),
        server::walsenders(&seen),
        server::slot_limit(&seen),
        server::wal_sender_timeout(&seen),
        server::keep_size(&seen),
        server::idle_timeout(&seen),
        slot::slot(&seen),
        slot::others(&seen),
        slot::transactions(&seen),
        failover::slot(&seen),
        failover::standby_slots(&seen),
    ] {
        assert_eq!(verdict(&check), "pass", "{check:?}");
    }
}

#[test]
fn versions() {
    let mut fixture = Fixture::new();
    for (major, failover, expected) in [
        (13, false, "warn"),
        (14, false, "pass"),
        (16, true, "fail"),
        (17, true, "pass"),
    ] {
        fixture.facts.server.major = major;
        fixture.wanted.failover = failover;
        let check = server::version(&fixture.seen());
        assert_eq!(verdict(&check), expected, "{check:?}");
    }
}

#[test]
fn clocks() {
    for (difference, within, expected) in [
        (0.0, 0.0, "pass"),
        (0.9, 0.0, "pass"),
        (1.5, 0.6, "pass"),
        (1.5, 0.1, "warn"),
        (-3600.0, 0.1, "warn"),
    ] {
        let check = server::clock(difference, within);
        assert_eq!(verdict(&check), expected, "{check:?}");
    }
    assert!(server::clock(-2.0, 0.0).finding.contains("behind"));
}

#[test]
fn limits_matter_to_who_needs_room() {
    let mut fixture = Fixture::new();
    fixture.survey.walsenders = 10;
    assert_eq!(verdict(&server::walsenders(&fixture.seen())), "fail");
    fixture.slot().active_pid = Some(1);
    assert_eq!(verdict(&server::walsenders(&fixture.seen())), "warn");
    fixture.survey.slots = vec![SlotRow::default(); 10];
    assert_eq!(verdict(&server::slot_limit(&fixture.seen())), "pass");
    fixture.facts.slot = None;
    assert_eq!(verdict(&server::slot_limit(&fixture.seen())), "fail");
}

#[test]
fn limits_of_wal() {
    let mut fixture = Fixture::new();
    for (limit, expected) in [(None, "warn"), (Some(GIB - 1), "warn"), (Some(GIB), "pass")] {
        fixture.facts.server.max_slot_wal_keep_size = limit;
        let check = server::keep_size(&fixture.seen());
        assert_eq!(verdict(&check), expected, "{check:?}");
    }
    fixture.config.source.wal_sender_timeout = Duration::from_secs(61);
    assert_eq!(
        verdict(&server::wal_sender_timeout(&fixture.seen())),
        "warn"
    );
}

#[test]
fn open_transactions_are_long_sooner_where_they_are_waited_for() {
    let mut fixture = Fixture::new();
    let of = |seconds| Transaction { pid: 7, seconds };
    fixture.survey.transactions = vec![of(Some(10))];
    assert_eq!(verdict(&slot::transactions(&fixture.seen())), "pass");
    // The slot has to be created, which waits for them.
    let slot = fixture.facts.slot.take();
    assert_eq!(verdict(&slot::transactions(&fixture.seen())), "warn");
    fixture.facts.slot = slot;
    fixture.survey.transactions = vec![of(Some(60))];
    let check = slot::transactions(&fixture.seen());
    assert_eq!(verdict(&check), "warn");
    assert!(check.remedy.unwrap().contains("pg_terminate_backend(7)"));
    fixture.survey.transactions = vec![of(None)];
    let check = slot::transactions(&fixture.seen());
    assert!(check.remedy.unwrap().contains("GRANT pg_read_all_stats"));
}

#[test]
fn a_failover_slot_needs_standbys_that_read() {
    let mut fixture = Fixture::new();
    let standby = SlotRow {
        name: "standby".into(),
        ..SlotRow::default()
    };
    fixture.survey.slots = vec![standby.clone()];
    // A standby streams, and has no copy of the slot.
    assert_eq!(verdict(&failover::slot(&fixture.seen())), "warn");
    fixture.wanted.failover = true;
    assert_eq!(verdict(&failover::slot(&fixture.seen())), "warn");
    fixture.slot().failover = Some(true);
    assert_eq!(verdict(&failover::slot(&fixture.seen())), "pass");
    let check = failover::standby_slots(&fixture.seen());
    assert_eq!(verdict(&check), "warn");
    assert!(check.remedy.unwrap().contains("= 'standby'"));
    for (setting, active_pid, expected) in [
        ("standby", None, "fail"),
        ("standby", Some(7), "pass"),
        ("\"standby\", other", Some(7), "fail"),
    ] {
        fixture.survey.slots[0].active_pid = active_pid;
        let survey = std::mem::take(&mut fixture.survey);
        fixture.survey = survey.with("synchronized_standby_slots", setting, "");
        let check = failover::standby_slots(&fixture.seen());
        assert_eq!(verdict(&check), expected, "{check:?}");
    }
    // No standby is named in the URL.
    assert_eq!(verdict(&failover::copies(&fixture.seen(), &[])[0]), "warn");
}
