//! The slot: missing, lost, or on a standby.

use super::*;

/// The publication shows that a relay was set up here. Then only `init` creates the slot silently.
#[test]
fn a_slot_that_is_missing_beside_its_publication_is_not_created_silently() {
    let error = plan(&wanted(), &without_slot(), FIRST).expect_err("it may have been dropped");
    assert_eq!(
        error,
        SetupError::Slot(SlotSetupError::Missing {
            slot: "walrelay".into(),
            gap: Some(Gap {
                from: None,
                to: at("0/90"),
            }),
        })
    );
    for way in ["walrelay init", "walrelay run --accept-gap"] {
        assert!(error.remedy().contains(way), "{}", error.remedy());
    }
    let plan = plan(&wanted(), &without_slot(), Moment::Init).expect("init makes it");
    assert_eq!(plan.actions, [Action::CreateSlot]);
    assert!(plan.notes[0].contains("was there already"), "{plan:?}");
}

#[test]
fn a_known_position_forbids_to_create_the_slot_even_without_a_publication() {
    let moment = |accept_gap| start(at("0/30"), accept_gap);
    let gap = Gap {
        from: at("0/30"),
        to: at("0/90"),
    };
    let error = plan(&wanted(), &bare(), moment(false)).expect_err("it is gone");
    assert!(error.to_string().contains("from 0/30 to 0/90"), "{error}");
    let plan = plan(&wanted(), &bare(), moment(true)).expect("accepted");
    assert_eq!(
        plan.actions,
        [Action::CreatePublication, Action::CreateSlot]
    );
    assert_eq!(plan.gap, Some(gap));
}

/// A relay has streamed here. A snapshot reads all rows, so it needs no range.
#[test]
fn a_noted_position_forbids_to_create_the_slot_without_a_snapshot() {
    let gap = Some(Gap {
        from: at("0/30"),
        to: at("0/90"),
    });
    for facts in [bare(), without_slot()] {
        let error = plan(&wanted(), &facts, noted("0/30", false)).expect_err("it is gone");
        let slot = wanted().slot;
        assert_eq!(
            error,
            SetupError::Slot(SlotSetupError::Missing { slot, gap })
        );
        let plan = plan(&wanted(), &facts, noted("0/30", true)).expect("accepted");
        assert_eq!(plan.actions.last(), Some(&Action::CreateSlot));
        assert_eq!(plan.gap, gap);
    }
    let snapshot = Wanted {
        snapshot: Some(Selection::default()),
        ..wanted()
    };
    let plan = plan(&snapshot, &without_slot(), noted("0/30", false)).expect("read again");
    assert_eq!(plan.actions, [Action::Snapshot]);
    assert_eq!(plan.gap, None);
}

#[test]
fn an_accepted_gap_creates_the_slot_even_without_create() {
    let strict = Wanted {
        create: false,
        ..wanted()
    };
    let plan = plan(&strict, &without_slot(), start(None, true)).expect("accepted");
    assert_eq!(plan.actions, [Action::CreateSlot]);
    assert!(plan.gap.is_some());
}

#[test]
fn accepting_gaps_changes_nothing_without_a_gap() {
    let known = start(at("0/30"), true);
    assert_eq!(plan(&wanted(), &facts(), known), Ok(Plan::default()));
    let plan = plan(&wanted(), &bare(), start(None, true)).expect("the first day");
    assert_eq!(plan.gap, None);
}

#[test]
fn a_slot_that_was_relayed_is_never_recreated() {
    let error = plan(&wanted(), &without_slot(), relayed()).expect_err("it is gone");
    assert_eq!(error.id(), "slot-gone");
    assert!(error.to_string().contains("from 0/20 to 0/90"), "{error}");
}

/// Each major version reports a lost slot in its own way.
#[test]
fn a_lost_slot_is_replaced_only_if_the_gap_is_accepted() {
    for (wal_status, invalidated) in [
        (Some("lost"), None),
        (Some("lost"), Some("wal_removed")),
        (Some("unreserved"), Some("idle_timeout")),
        (None, Some("conflicting with recovery")),
        (Some("lost"), Some("rows_removed")),
        (Some("lost"), Some("wal_level_insufficient")),
    ] {
        let mut facts = facts();
        slot(&mut facts).wal_status = wal_status.map(str::to_owned);
        slot(&mut facts).invalidated = invalidated.map(str::to_owned);
        // The gap begins at the later of the relayed and the slot's position.
        for (moment, from) in [
            (FIRST, "from 0/10 to 0/90"),
            (start(at("0/30"), false), "from 0/30 to 0/90"),
            (start(at("0/5"), false), "from 0/10 to 0/90"),
            (relayed(), "from 0/20 to 0/90"),
            (Moment::Init, "from 0/10 to 0/90"),
        ] {
            let error = plan(&wanted(), &facts, moment).expect_err("it is lost");
            assert_eq!(error.id(), "slot-lost");
            let text = error.to_string();
            assert!(text.contains(from), "{moment:?}: {text}");
            let reason = invalidated.unwrap_or("wal_status = lost");
            assert!(text.contains(reason), "{text}");
            assert!(error.remedy().contains("'751'::xid"), "{}", error.remedy());
            let setting = match invalidated {
                Some("idle_timeout") => "idle_replication_slot_timeout",
                Some("conflicting with recovery" | "rows_removed") => "hot_standby_feedback = on",
                Some("wal_level_insufficient") => "wal_level = logical on the primary",
                _ => "max_slot_wal_keep_size",
            };
            assert!(error.remedy().contains(setting), "{}", error.remedy());
        }
        let plan = plan(&wanted(), &facts, start(at("0/30"), true)).expect("accepted");
        assert_eq!(plan.actions, [Action::DropSlot, Action::CreateSlot]);
        let gap = Gap {
            from: at("0/30"),
            to: at("0/90"),
        };
        assert_eq!(plan.gap, Some(gap));
        let wanted = Wanted {
            snapshot: Some(Selection::default()),
            ..wanted()
        };
        let plan = super::plan(&wanted, &facts, start(at("0/30"), true)).expect("accepted");
        assert_eq!(plan.actions, [Action::DropSlot, Action::Snapshot]);
        assert_eq!(plan.gap, Some(gap));
    }
}

/// Only a slot of this relay is dropped.
#[test]
fn a_lost_slot_of_another_consumer_is_not_replaced() {
    for (plugin, database, id) in [
        ("wal2json", "app", "slot-plugin"),
        ("pgoutput", "other", "slot-database"),
    ] {
        let mut facts = facts();
        let slot = slot(&mut facts);
        slot.wal_status = Some("lost".into());
        slot.plugin = Some(plugin.into());
        slot.database = Some(database.into());
        let error = plan(&wanted(), &facts, start(None, true)).expect_err("not ours");
        assert_eq!(error.id(), id);
    }
}

#[test]
fn failover_slots_need_17() {
    let wanted = Wanted {
        failover: true,
        ..wanted()
    };
    let mut facts = facts();
    // A starting relay mends that, unless it may create nothing, or the slot has a reader.
    let begun = plan(&wanted, &facts, FIRST).expect("fine");
    assert_eq!(
        (begun.actions, begun.notes),
        (vec![Action::EnableFailover], vec![])
    );
    let uncreated = Wanted {
        create: false,
        ..wanted.clone()
    };
    let mut read = facts.clone();
    slot(&mut read).active_pid = Some(7);
    let mut standby = facts.clone();
    standby.server.in_recovery = true;
    for (wanted, facts, moment) in [
        (&wanted, &facts, Moment::Init),
        (&uncreated, &facts, FIRST),
        (&wanted, &read, FIRST),
        (&wanted, &standby, FIRST),
    ] {
        let Plan { actions, notes, .. } = plan(wanted, facts, moment).expect("fine");
        assert!(actions.is_empty(), "{actions:?}");
        assert!(notes[0].contains("no failover slot"), "{notes:?}");
    }
    slot(&mut facts).failover = Some(true);
    assert_eq!(plan(&wanted, &facts, FIRST), Ok(Plan::default()));
    facts.server.major = 16;
    let error = plan(&wanted, &facts, FIRST).expect_err("too old");
    assert_eq!(error.id(), "failover-too-old");
}

#[test]
fn a_slot_is_neither_created_nor_missed_on_a_standby() {
    for moment in [FIRST, relayed(), Moment::Init] {
        let mut facts = facts();
        facts.server.in_recovery = true;
        // A slot on the standby can be read: since Postgres 16 a standby decodes.
        assert_eq!(plan(&wanted(), &facts, moment), Ok(Plan::default()));
        facts.slot = None;
        let error = plan(&wanted(), &facts, moment).expect_err("it is on the primary");
        assert_eq!(error.id(), "standby");
    }
}
