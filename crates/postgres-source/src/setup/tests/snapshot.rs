//! The snapshot before the slot, and a setup that was not finished.

use super::*;

/// A snapshot is planned if no relayed position is known. If the publication exists, an earlier
/// snapshot may have been interrupted.
#[test]
fn a_snapshot_comes_before_the_slot() {
    let wanted = Wanted {
        snapshot: Some(Selection::default()),
        ..wanted()
    };
    let mut facts = facts();
    // If the slot exists, the snapshot is complete.
    assert_eq!(plan(&wanted, &facts, FIRST), Ok(Plan::default()));
    facts.slot = None;
    let begun = plan(&wanted, &facts, FIRST).expect("a snapshot");
    assert_eq!(begun.actions, [Action::Snapshot]);
    assert!(begun.notes[0].contains("was dropped"), "{:?}", begun.notes);
    let uncreated = Wanted {
        create: false,
        ..wanted.clone()
    };
    assert_eq!(
        plan(&uncreated, &facts, FIRST).expect("a snapshot").actions,
        [Action::Snapshot]
    );
    // A relayed position is known, from a state file or this process: the slot was dropped.
    let known = |accept_gap| start(at("0/20"), accept_gap);
    let error = plan(&wanted, &facts, known(false)).expect_err("dropped");
    assert_eq!(error.id(), "slot-missing");
    let accepted = plan(&wanted, &facts, known(true)).expect("accepted");
    assert_eq!(accepted.actions, [Action::Snapshot]);
    assert!(accepted.gap.is_some());
    let error = plan(&wanted, &facts, relayed()).expect_err("dropped");
    assert_eq!(error.id(), "slot-gone");
    // A polling relay may send the rows: after a rollback, or before a switch.
    let by = |poller| Wanted {
        poller,
        ..wanted.clone()
    };
    let marks = by(Poller::MayRun);
    let error = plan(&marks, &facts, FIRST).expect_err("a decision is needed");
    assert_eq!(error.id(), "cutover-not-switched");
    let accepted = plan(&marks, &facts, start(None, true)).expect("decided");
    assert_eq!(accepted.actions, [Action::Snapshot]);
    let init = plan(&marks, &facts, Moment::Init).expect("later");
    assert!(init.actions.is_empty() && init.notes[0].contains("walrelay cutover switch"));
    // Of the rows that `cutover switch` sends, none was relayed from a slot.
    let switched = plan(&by(Poller::Stopped), &facts, FIRST).expect("a snapshot");
    assert_eq!(switched.actions, [Action::Snapshot]);
    assert!(switched.notes.is_empty(), "{:?}", switched.notes);
    // `init` leaves the snapshot to the relay, and printing reads no rows.
    let init = plan(&wanted, &facts, Moment::Init).expect("later");
    assert!(init.actions.is_empty() && init.notes[0].contains("walrelay run"));
    let print = plan(&wanted, &facts, Moment::Print).expect("from now on");
    assert_eq!(print.actions, [Action::CreateSlot]);
    facts.publication = None;
    let first = plan(&wanted, &facts, FIRST).expect("the first day");
    assert_eq!(first.actions, [Action::CreatePublication, Action::Snapshot]);
    assert!(first.notes.is_empty());
    assert_eq!(plan(&marks, &facts, FIRST), Ok(first));
    facts.server.in_recovery = true;
    let error = plan(&wanted, &facts, FIRST).expect_err("on the primary");
    assert_eq!(error.id(), "standby");
}

/// walrelay's mark says that it has created the publication, and never the slot.
#[test]
fn a_setup_that_was_not_finished_goes_on() {
    let mut facts = Facts {
        slot: None,
        ..facts()
    };
    let mut wanted = wanted();
    let error = plan(&wanted, &facts, FIRST).expect_err("a slot that was dropped");
    assert_eq!(error.id(), "slot-missing");
    publication(&mut facts).unfinished = true;
    for moment in [FIRST, Moment::Init] {
        let planned = plan(&wanted, &facts, moment).expect("it goes on");
        assert_eq!(planned.actions, [Action::CreateSlot]);
        assert_eq!(planned.notes, [] as [String; 0]);
    }
    // A state file knows of a slot.
    assert!(plan(&wanted, &facts, start(at("0/20"), false)).is_err());
    wanted.snapshot = Some(Selection::default());
    wanted.poller = Poller::MayRun;
    let planned = plan(&wanted, &facts, FIRST).expect("it begins anew");
    assert_eq!(planned.actions, [Action::Snapshot]);
    assert_eq!(planned.notes, [] as [String; 0]);
    // The slot was made, and the mark was left.
    facts.slot = self::facts().slot;
    let planned = plan(&wanted, &facts, FIRST).expect("it is finished");
    assert_eq!(planned.actions, [Action::FinishSetup]);
    facts.server.in_recovery = true;
    assert_eq!(plan(&wanted, &facts, FIRST), Ok(Plan::default()));
}
