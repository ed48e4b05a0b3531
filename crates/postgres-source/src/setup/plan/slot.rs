//! The slot's part of a plan: whether it continues, is created, or is replaced after a gap.

use super::moment::Moment;
use super::{Action, Plan};
use crate::catalog::{Facts, Poller, Wanted};
use crate::error::{Gap, SetupError, SlotSetupError};

/// Returns the number of slots that must be free for the relay's slot: a snapshot has one of its own,
/// of which the relay's is a copy.
pub fn slots_needed(wanted: &Wanted) -> i64 {
    1 + i64::from(wanted.snapshot.is_some())
}

/// Checks that the server has room for the slots that a plan creates, before anything is created or sent.
pub(super) fn slots_free(wanted: &Wanted, facts: &Facts, plan: &Plan) -> Result<(), SetupError> {
    let has = |action| plan.actions.contains(&action);
    let needed = match (has(Action::Snapshot), has(Action::CreateSlot)) {
        (true, _) => slots_needed(wanted),
        (false, true) => 1,
        (false, false) => return Ok(()),
    };
    let dropped = i64::from(has(Action::DropSlot));
    match facts.server.free_slots {
        Some(free) if free + dropped < needed => Err(SetupError::Slot(SlotSetupError::Limit {
            slot: wanted.slot.clone(),
            free,
            needed,
        })),
        _ => Ok(()),
    }
}

/// Checks the slot. Adds actions and notes to the plan.
pub fn slot(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let name = &wanted.slot;
    let Some(slot) = &facts.slot else {
        return missing_slot(wanted, facts, moment, plan);
    };
    let plugin = slot.plugin.as_deref().unwrap_or("none");
    if slot.kind != "logical" || plugin != "pgoutput" {
        return Err(SetupError::Slot(SlotSetupError::Plugin {
            slot: name.clone(),
            kind: slot.kind.clone(),
            plugin: plugin.to_owned(),
        }));
    }
    let database = slot.database.as_deref().unwrap_or_default();
    if database != facts.server.database {
        return Err(SetupError::Slot(SlotSetupError::Database {
            slot: name.clone(),
            found: database.to_owned(),
            connected: facts.server.database.clone(),
        }));
    }
    // Before 15, pgoutput ignores two_phase. A copy, which is printed, has it off.
    if slot.two_phase && facts.server.major >= 15 && moment != Moment::Print {
        return Err(SetupError::Slot(SlotSetupError::TwoPhase(name.clone())));
    }
    if let Some(reason) = slot.lost() {
        let gap = Gap {
            // The relayed position may be ahead of the slot's confirmed one.
            from: moment.known().max(slot.confirmed),
            to: facts.server.wal_end,
        };
        if !moment.accepts_gap() {
            return Err(SetupError::Slot(SlotSetupError::Lost {
                slot: name.clone(),
                reason,
                gap,
                catalog_xmin: slot.catalog_xmin,
            }));
        }
        plan.gap = Some(gap);
        plan.actions.push(Action::DropSlot);
        // A snapshot that is interrupted is begun again on the primary only.
        plan.actions.push(match wanted.snapshot {
            Some(_) if !facts.server.in_recovery => Action::Snapshot,
            _ => Action::CreateSlot,
        });
        return Ok(());
    }
    let is_marked = facts.publication.as_ref().is_some_and(|of| of.unfinished);
    if is_marked && moment != Moment::Print && !facts.server.in_recovery {
        plan.actions.push(Action::FinishSetup);
    }
    let lacks_failover = wanted.failover && slot.failover == Some(false);
    let starts = matches!(moment, Moment::Start { .. });
    if lacks_failover
        && starts
        && wanted.create
        && !facts.server.in_recovery
        && slot.active_pid.is_none()
    {
        plan.actions.push(Action::EnableFailover);
    } else if lacks_failover {
        plan.notes.push(format!(
            "slot {name} is no failover slot, though [source] failover is set: no standby keeps a \
             copy of it"
        ));
    }
    // A starting relay learns of a busy slot from START_REPLICATION.
    if moment == Moment::Init
        && let Some(pid) = slot.active_pid
    {
        plan.notes
            .push(format!("slot {name} is being read by server process {pid}"));
    }
    Ok(())
}

/// Plans for a missing slot.
fn missing_slot(
    wanted: &Wanted,
    facts: &Facts,
    moment: Moment,
    plan: &mut Plan,
) -> Result<(), SetupError> {
    let slot = wanted.slot.clone();
    // The slot is on the primary. This is a standby.
    if facts.server.in_recovery {
        return Err(SetupError::Slot(SlotSetupError::Standby(slot)));
    }
    let gap = |from| Gap {
        from,
        to: facts.server.wal_end,
    };
    let set_up = facts.publication.as_ref().is_some_and(|of| !of.unfinished);
    // A publication without its slot means that the slot was dropped, or that a snapshot was
    // interrupted. Reading all rows again is right for both: it repeats rows, and leaves out only
    // rows that were deleted. Before `cutover switch` the publication is there without a slot as well.
    // Over a gap, a snapshot has the rows of the gap that are there.
    let accepted = moment.accepts_gap();
    let snapshot = wanted.snapshot.is_some() && (accepted || moment.known().is_none());
    match moment {
        // After `cutover rollback`, or before the switch, a polling relay sends the rows.
        Moment::Start { .. }
            if snapshot && wanted.poller == Poller::MayRun && set_up && !accepted =>
        {
            return Err(SetupError::Slot(SlotSetupError::NotSwitched(slot)));
        }
        Moment::Start { known, .. } if snapshot => {
            if known.is_some() || (set_up && accepted) {
                plan.gap = Some(gap(moment.confirmed()));
            } else if set_up && wanted.poller != Poller::Stopped {
                plan.notes.push(format!(
                    "publication {} is there and slot {slot} is not: if no snapshot was \
                     interrupted, the slot was dropped, and events relayed from it are relayed \
                     again",
                    wanted.publication
                ));
            }
            plan.actions.push(Action::Snapshot);
            return Ok(());
        }
        Moment::Init if wanted.snapshot.is_some() => {
            let command = if wanted.poller == Poller::MayRun {
                "walrelay cutover switch"
            } else {
                "walrelay run"
            };
            plan.notes.push(format!(
                "slot {slot} is not created here: {command} creates it, after the snapshot"
            ));
            return Ok(());
        }
        Moment::Relayed { upto } => {
            let gap = gap(Some(upto));
            return Err(SetupError::Slot(SlotSetupError::Gone { slot, gap }));
        }
        Moment::Init if set_up => plan.notes.push(format!(
            "publication {} was there already: if there was a slot before, changes committed since \
             it was dropped are not relayed",
            wanted.publication
        )),
        Moment::Start { accept_gap, .. } if moment.confirmed().is_some() || set_up => {
            let gap = gap(moment.confirmed());
            if !accept_gap {
                let gap = Some(gap);
                return Err(SetupError::Slot(SlotSetupError::Missing { slot, gap }));
            }
            plan.gap = Some(gap);
        }
        Moment::Start { .. } if !wanted.create => {
            return Err(SetupError::Slot(SlotSetupError::Missing {
                slot,
                gap: None,
            }));
        }
        Moment::Init | Moment::Print | Moment::Start { .. } => {}
    }
    plan.actions.push(Action::CreateSlot);
    Ok(())
}
