use std::sync::LazyLock;
use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_postgres_source::{
    Facts, Moment, ServerFacts, SlotReader, SlotRow, Survey, Transaction,
};

use super::*;
use crate::commands::assembly::wanted;
use crate::commands::inspect::check::item::Verdict;
use crate::commands::test_config;

const GIB: u64 = 1 << 30;

static CONFIG: LazyLock<PipelineConfig> = LazyLock::new(test_config);

/// Returns a server on which all checks pass.
fn healthy() -> DatabaseState<'static> {
    let slot = SlotRow {
        kind: "logical".into(),
        plugin: Some("pgoutput".into()),
        database: Some("app".into()),
        confirmed: Some(Lsn::new(GIB)),
        restart: Some(Lsn::new(GIB)),
        wal_status: Some("reserved".into()),
        failover: Some(false),
        ..SlotRow::default()
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
        others: Vec::new(),
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
    DatabaseState {
        moved: (None, None),
        config: &CONFIG,
        application_name: "walrelay".to_owned(),
        wanted: wanted(&CONFIG),
        facts,
        survey,
        reader: None,
        last_error: None,
        run: None,
        epoch: 0,
        moment: Moment::Start {
            known: None,
            noted: None,
            accept_gap: false,
        },
        continued: Ok(()),
        noted: None,
        carried: Ok(()),
    }
}

impl DatabaseState<'_> {
    fn slot(&mut self) -> &mut SlotRow {
        self.facts.slot.as_mut().unwrap()
    }
}

/// Asserts the verdict of a check, and that the check has a remedy unless it passed.
#[track_caller]
fn expect(check: &Check, verdict: &str) {
    let passed = check.verdict == Verdict::Pass;
    assert_eq!(passed, check.remedy.is_none(), "{check:?}");
    assert_eq!(check.verdict.name(), verdict, "{check:?}");
}

#[test]
fn a_healthy_server_passes() {
    let db = healthy();
    for check in [
        server::version(&db),
        server::logical(&db),
        server::replication(&db, Ok(())),
        server::walsenders(&db),
        server::slot_limit(&db),
        server::wal_sender_timeout(&db),
        server::synchronous_standby(&db),
        server::keep_size(&db),
        server::idle_timeout(&db),
        slot::slot(&db),
        slot::other_slots(&db),
        slot::transactions(&db),
        failover::slot(&db),
        failover::standby_slots(&db),
    ] {
        expect(&check, "pass");
    }
}

#[test]
fn a_relay_is_no_synchronous_standby() {
    for (setting, expected) in [
        ("", "pass"),
        ("standby_1, \"Standby 2\"", "pass"),
        ("FIRST 1 (walrelay_2, other)", "pass"),
        ("*", "warn"),
        ("ANY 2 (standby_1, *)", "warn"),
        ("FIRST 1 (WalRelay, standby_1)", "warn"),
        ("\"walrelay\"", "warn"),
    ] {
        let mut db = healthy();
        db.survey = db.survey.with("synchronous_standby_names", setting, "");
        let check = server::synchronous_standby(&db);
        assert_eq!(check.verdict.name(), expected, "{setting}: {check:?}");
    }
}

#[test]
fn versions() {
    let mut db = healthy();
    for (major, failover, expected) in [
        (13, false, "warn"),
        (14, false, "pass"),
        (16, true, "fail"),
        (17, true, "pass"),
    ] {
        db.facts.server.major = major;
        db.wanted.failover = failover;
        expect(&server::version(&db), expected);
    }
}

#[test]
fn wal_level_warns_while_the_last_slot_keeps_decoding_on() {
    for (wal_level, effective, in_recovery, verdict, finding) in [
        ("replica", None, false, "fail", "needs logical"),
        (
            "minimal",
            Some("minimal"),
            false,
            "fail",
            "needs replica or logical",
        ),
        (
            "replica",
            Some("replica"),
            false,
            "pass",
            "slot switches logical decoding on, without a restart",
        ),
        ("replica", Some("logical"), false, "warn", "slot is dropped"),
        (
            "replica",
            Some("replica"),
            true,
            "pass",
            "slot of the primary switches",
        ),
        (
            "replica",
            Some("logical"),
            true,
            "warn",
            "slot of the primary is dropped",
        ),
        ("logical", Some("logical"), false, "pass", "logical"),
    ] {
        let mut db = healthy();
        let server = &mut db.facts.server;
        server.wal_level = wal_level.to_owned();
        server.effective_wal_level = effective.map(str::to_owned);
        server.in_recovery = in_recovery;
        let check = server::logical(&db);
        expect(&check, verdict);
        assert!(check.finding.contains(finding), "{check:?}");
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
        expect(&server::clock((difference, within)), expected);
    }
    assert!(server::clock((-2.0, 0.0)).finding.contains("behind"));
}

#[test]
fn limits_fail_only_if_the_relay_needs_room() {
    let mut db = healthy();
    db.survey.walsenders = 10;
    expect(&server::walsenders(&db), "fail");
    db.slot().active_pid = Some(1);
    expect(&server::walsenders(&db), "warn");
    db.survey.slots = vec![SlotRow::default(); 10];
    expect(&server::slot_limit(&db), "pass");
    db.facts.slot = None;
    expect(&server::slot_limit(&db), "fail");
}

#[test]
fn the_reader_of_the_slot_is_named_as_far_as_the_role_may_see() {
    let mut db = healthy();
    db.slot().active_pid = Some(7);
    let finding = |db: &DatabaseState<'_>| slot::slot(db).finding;
    let read = "is being read by server process 7";
    assert!(finding(&db).ends_with(read), "{}", finding(&db));
    let mut reader = SlotReader {
        pid: 7,
        application_name: Some("psql".to_owned()),
        client: Some("10.0.0.5:40312".to_owned()),
        walsender: true,
        since: Some(PgTimestamp::new(0)),
    };
    db.reader = Some(reader.clone());
    let seen = "(psql), from 10.0.0.5:40312, connected since 2000-01-01";
    let all = format!("{read} {seen}");
    assert!(finding(&db).contains(&all), "{}", finding(&db));
    // Another process has taken the slot between two queries.
    reader.pid = 8;
    db.reader = Some(reader);
    assert!(finding(&db).ends_with(read), "{}", finding(&db));
}

#[test]
fn limits_of_wal() {
    let mut db = healthy();
    for (limit, expected) in [(None, "warn"), (Some(GIB - 1), "warn"), (Some(GIB), "pass")] {
        db.facts.server.max_slot_wal_keep_size = limit;
        expect(&server::keep_size(&db), expected);
    }
    let mut config = CONFIG.clone();
    config.source.wal_sender_timeout = Duration::from_secs(61);
    db.config = &config;
    expect(&server::wal_sender_timeout(&db), "warn");
}

#[test]
fn open_transactions_are_reported_sooner_if_waited_for() {
    let mut db = healthy();
    let of = |seconds| Transaction { pid: 7, seconds };
    db.survey.transactions = vec![of(Some(10))];
    expect(&slot::transactions(&db), "pass");
    // The creation of the slot waits for transactions.
    let slot = db.facts.slot.take();
    expect(&slot::transactions(&db), "warn");
    db.facts.slot = slot;
    db.survey.transactions = vec![of(Some(60))];
    let check = slot::transactions(&db);
    expect(&check, "warn");
    assert!(check.remedy.unwrap().contains("pg_terminate_backend(7)"));
    db.survey.transactions = vec![of(None)];
    let check = slot::transactions(&db);
    assert!(check.remedy.unwrap().contains("GRANT pg_read_all_stats"));
}

#[test]
fn a_failover_slot_needs_standbys_that_read() {
    let mut db = healthy();
    let standby = SlotRow {
        name: "standby".into(),
        ..SlotRow::default()
    };
    db.survey.slots = vec![standby.clone()];
    // A standby streams, and has no copy of the slot.
    expect(&failover::slot(&db), "warn");
    db.wanted.failover = true;
    expect(&failover::slot(&db), "warn");
    db.slot().failover = Some(true);
    expect(&failover::slot(&db), "pass");
    let check = failover::standby_slots(&db);
    expect(&check, "warn");
    assert!(check.remedy.unwrap().contains("= 'standby'"));
    for (setting, active_pid, expected) in [
        ("standby", None, "fail"),
        ("standby", Some(7), "pass"),
        ("\"standby\", other", Some(7), "fail"),
    ] {
        db.survey.slots[0].active_pid = active_pid;
        let survey = std::mem::take(&mut db.survey);
        db.survey = survey.with("synchronized_standby_slots", setting, "");
        expect(&failover::standby_slots(&db), expected);
    }
    // No standby is named in the URL.
    expect(&failover::copies(&db, &[])[0], "warn");
}
