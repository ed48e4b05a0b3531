use walrelay_observe::{RecentErrors, Setup, Telemetry};

use super::screen::slot_line;
use super::*;

#[test]
fn pruned_rows_are_shown_once_there_are_any() {
    let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
    let pruned = || {
        let lines = status_lines(&telemetry.report());
        lines.into_iter().find(|(name, _)| name == "pruned")
    };
    assert_eq!(pruned(), None);
    telemetry.pruned(7);
    telemetry.pruned(5);
    assert_eq!(pruned(), Some(("pruned".to_owned(), "12 rows".to_owned())));
}

fn slot(invalidated: Option<&str>, pid: Option<i64>) -> SlotReport {
    SlotReport {
        active: pid.is_some(),
        active_pid: pid,
        wal_status: None,
        retained_bytes: 0,
        safe_wal_bytes: None,
        limit_bytes: None,
        oldest_transaction: None,
        inactive_seconds: None,
        invalidation_reason: invalidated.map(str::to_owned),
        waits_for_standbys: None,
        seen_ms: 0,
    }
}

#[test]
fn without_an_endpoint_the_screen_has_the_lines_to_add_and_fits() {
    let mut status = Status {
        relay: None,
        relay_error: Some("[http] listen is not configured".to_owned()),
        is_silent: false,
        has_endpoint: false,
        slot: None,
        last_error: None,
        last_run: None,
        moved: None,
        losses: Vec::new(),
    };
    let narrow = screen(&lines("s", &status), false, 60);
    assert!(narrow.contains("[http]\n"), "{narrow}");
    assert!(narrow.contains("listen = \"127.0.0.1:9187\"\n"), "{narrow}");
    assert!(
        narrow.lines().all(|line| line.chars().count() <= 60),
        "{narrow}"
    );
    assert!(!narrow.contains('\u{1b}'), "{narrow}");
    let coloured = screen(&lines("s", &status), true, 60);
    assert!(
        coloured.contains("\u{1b}[1;32m->\u{1b}[0m to see"),
        "{coloured}"
    );
    status.has_endpoint = true;
    let without = screen(&lines("s", &status), false, 60);
    assert!(!without.contains("9187"), "{without}");
}

/// With `--exit-code` a script sees what a person reads.
#[test]
fn what_is_not_well_has_an_exit_code_and_a_remedy() {
    let of_slot = |slot| Status {
        relay: None,
        relay_error: None,
        is_silent: false,
        has_endpoint: true,
        slot,
        last_error: None,
        last_run: None,
        moved: None,
        losses: Vec::new(),
    };
    let exit = |status: &Status| not_well("s", status).map(|failure| failure.exit);
    for (status, word) in [
        (of_slot(None), "walrelay init"),
        (of_slot(Some(slot(Some("lost"), None))), "slot is lost"),
        (of_slot(Some(slot(None, None))), "walrelay run"),
    ] {
        let failure = not_well("s", &status).expect("a failure");
        assert_eq!(failure.exit, Exit::Unavailable);
        let remedy = failure.remedy.expect("a remedy");
        assert!(remedy.contains(word), "{remedy}");
    }
    assert_eq!(exit(&of_slot(Some(slot(None, Some(1))))), None);
    // It is read, and the server removes what it needs at the next checkpoint.
    let unreserved = SlotReport {
        wal_status: Some("unreserved".to_owned()),
        ..slot(None, Some(1))
    };
    assert!(slot_line(&unreserved).contains(", unreserved"));
    let failure = not_well("s", &of_slot(Some(unreserved))).expect("a failure");
    assert_eq!(failure.exit, Exit::Unavailable);
    // Two fifths of the limit are left.
    let half = SlotReport {
        safe_wal_bytes: Some(40 << 20),
        limit_bytes: Some(100 << 20),
        ..slot(None, Some(1))
    };
    assert_eq!(exit(&of_slot(Some(half))), Some(Exit::Unavailable));
    let telemetry = Telemetry::new(Setup::default(), RecentErrors::default());
    let of_relay = |telemetry: &Telemetry| Status {
        relay: Some(telemetry.report()),
        relay_error: None,
        is_silent: false,
        has_endpoint: true,
        slot: None,
        last_error: None,
        last_run: None,
        moved: None,
        losses: Vec::new(),
    };
    assert_eq!(exit(&of_relay(&telemetry)), Some(Exit::Temporary));
    telemetry.state(&walrelay_relay::PipelineState::Streaming);
    assert_eq!(exit(&of_relay(&telemetry)), None);
}
