//! `walrelay move prepare` and `drain`: refuse inserts, and on the old server wait until everything is delivered.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::sleep;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::end_of_commits;
use walrelay_postgres_source::moves::{
    LOCKED, MoveState, fence_sql, next_transaction, position_behind, raise_fence, record_drained,
    undo_fence,
};
use walrelay_walsender::Session;

use super::not_agreed;
use super::place::{Place, PlaceState, failure};
use crate::cli::{DrainMoveArgs, PrepareMoveArgs};
use crate::commands::assembly::{StopSignals, block_on};
use crate::commands::terminal::confirm::ask_to_continue;
use crate::commands::terminal::units::bytes;
use crate::commands::{print_as, print_line, print_notice, print_text};

/// The time that services wait behind one attempt to fence a table.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two attempts, in which services write.
const LOCK_PAUSE: Duration = Duration::from_millis(500);
/// Interval of the looks at the slot.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval of the lines about a drain that goes on.
const NOTICE: Duration = Duration::from_secs(5);

/// Runs `walrelay move prepare`.
pub(super) fn prepare(args: &PrepareMoveArgs, place: &Place) -> Result<(), Failure> {
    if args.change.dry_run {
        let look = block_on(Box::pin(place.look_once()))??;
        return print_sql(place, &look, MoveState::Prepared);
    }
    block_on(Box::pin(async {
        let mut session = place.connect_locked().await?;
        let look = place.look(&mut session).await?;
        if let Some(copied) = look.copied().filter(|_| look.unfenced.is_empty()) {
            let what = format!(
                "this server is a copy of server {}, and has its fence",
                copied.server.system
            );
            return Err(Failure::new("move-state", Exit::Usage, what)
                .remedy("no preparation is needed: run walrelay move switch"));
        }
        if look.state() != Some(MoveState::Prepared) {
            look.check_new(place)?;
            if !args.emitters_stopped {
                look.check_emitters()?;
            }
        }
        let until = Instant::now() + args.patience;
        fence(&mut session, place, &look, MoveState::Prepared, until).await?;
        session.close().await;
        Ok(())
    }))??;
    print_line(
        "the outbox of this server refuses inserts, and accepts replicated rows. Next: walrelay move drain on the old \
         server",
    )
}

/// Runs `walrelay move drain`.
pub(super) fn drain(args: &DrainMoveArgs, place: &Place) -> Result<(), Failure> {
    let look = block_on(Box::pin(place.look_once()))??;
    if args.ask.change.dry_run {
        return print_sql(place, &look, MoveState::Fenced);
    }
    if !args.emitters_stopped {
        look.check_emitters()?;
    }
    print_notice(
        "from now on inserts into the outbox fail, with the transactions that try, until the new server is switched to \
         or walrelay move abort is run here",
    );
    if !args.ask.yes {
        ask_to_continue(not_agreed())?;
    }
    let begun = Instant::now();
    let until = begun + args.patience;
    let barrier = block_on(Box::pin(async {
        let mut session = place.connect_locked().await?;
        let look = place.look(&mut session).await?;
        // Its slot may be dropped by now, and its relay stopped: the fence has stood since then.
        if let Some(own) = look.own()
            && let Some(barrier) = own.barrier
            && look.is_drained()
        {
            session.close().await;
            return Ok(barrier);
        }
        look.check_old(place)?;
        let mut signals = StopSignals::new()?;
        let drained = tokio::select! {
            drained = fence_and_wait(&mut session, place, &look, until) => drained,
            () = signals.next() => {
                Err(Failure::new("move-interrupted", Exit::Temporary, "the drain was interrupted")
                    .remedy("run walrelay move drain again when writers may wait for it"))
            }
        };
        if let Err(error) = drained {
            // The statement that was in progress is not known to have ended. The lock is free once it has.
            drop(session);
            return Err(match place.connect_locked().await {
                Ok(mut session) => lift(&mut session, place, &look, error).await,
                Err(why) => still_fenced(error, &why.what),
            });
        }
        session.close().await;
        drained
    }))??;
    let seconds = begun.elapsed().as_secs_f64();
    let text = format!(
        "every event of this server is delivered and confirmed: all were committed before {barrier} ({seconds:.1} s).\n\
         Next: copy the server or let the new one catch up, and run walrelay move switch there.\n"
    );
    let object = json!({ "slot": place.server.slot(), "barrier": barrier, "seconds": seconds });
    print_as(args.output, &text, &object)
}

fn print_sql(place: &Place, look: &PlaceState, state: MoveState) -> Result<(), Failure> {
    print_text(&(fence_sql(place.server.slot(), &look.fenced, state).join(";\n") + ";\n"))
}

/// Fences the outbox, and waits until the slot has confirmed the barrier. Returns the barrier.
async fn fence_and_wait(
    session: &mut Session,
    place: &Place,
    look: &PlaceState,
    until: Instant,
) -> Result<Lsn, Failure> {
    let mut barrier = fence(session, place, look, MoveState::Fenced, until).await?;
    if look.emitters.is_some() {
        barrier = wait_for_emitters(session, until).await?;
    }
    // Makes the server send the log up to there, and the relay confirm it.
    end_of_commits(session, false).await?;
    let mut said = Instant::now();
    loop {
        let slot = place.server.find_slot(session).await?;
        let confirmed = slot.as_ref().and_then(|slot| slot.confirmed);
        if confirmed.is_some_and(|confirmed| confirmed >= barrier) {
            break;
        }
        let Some(slot) = slot.filter(|slot| !slot.is_lost()) else {
            let what = format!("slot {} is missing or lost", place.server.slot());
            return Err(Failure::new("move-slot", Exit::Config, what)
                .remedy("find out who dropped it, and see to the relay (walrelay check) before you drain again"));
        };
        let left = bytes(barrier.bytes_since(confirmed.unwrap_or(Lsn::ZERO)));
        if Instant::now() > until {
            let what = format!("slot {} has {left} of log left to confirm", slot.name);
            return Err(Failure::new("move-not-drained", Exit::Temporary, what)
                .remedy("see why the relay is behind (walrelay status), and begin again"));
        }
        if said.elapsed() > NOTICE {
            said = Instant::now();
            print_notice(&match slot.active_pid {
                Some(_) => format!("the relay has {left} of log left to confirm"),
                None => format!(
                    "no relay reads slot {}, which has {left} of log left: start walrelay run",
                    slot.name
                ),
            });
        }
        sleep(INTERVAL).await;
    }
    // A superuser, or a DDL, may have lifted the fence meanwhile.
    let now = place.look(session).await?;
    now.check_fence("run walrelay move drain again")?;
    let recorded = record_drained(session, place.server.slot(), &look.here, barrier);
    if !recorded.await.map_err(failure)? {
        let what = "the record of the move was changed meanwhile";
        return Err(Failure::new("move-state", Exit::Usage, what)
            .remedy("see where the move is: walrelay move plan"));
    }
    Ok(barrier)
}

/// Waits until all transactions that have begun to write have ended: one may have called an `outbox.emit` of before it
/// had a gate, whose lock the fence would have waited for. Returns the barrier.
async fn wait_for_emitters(session: &mut Session, until: Instant) -> Result<Lsn, Failure> {
    let next = next_transaction(session).await?;
    loop {
        if let Some(barrier) = position_behind(session, next).await? {
            return Ok(barrier);
        }
        if Instant::now() > until {
            let what = "transactions that may have written messages do not end";
            return Err(Failure::new("move-locked", Exit::Temporary, what)
                .remedy("end those with a backend_xid (pg_stat_activity), and pg_prepared_xacts, in each database; then begin again"));
        }
        sleep(INTERVAL).await;
    }
}

/// Fences the outbox in attempts, so that services wait behind none of them for long.
async fn fence(
    session: &mut Session,
    place: &Place,
    look: &PlaceState,
    state: MoveState,
    until: Instant,
) -> Result<Lsn, Failure> {
    let slot = place.server.slot();
    loop {
        let (tables, here) = (&look.fenced, &look.here);
        let raised = raise_fence(session, slot, tables, here, state, LOCK_TIMEOUT).await;
        match raised {
            Ok(barrier) => return Ok(barrier),
            Err(error) if error.sqlstate() == Some(LOCKED) && Instant::now() < until => {
                print_notice(
                    "waiting for transactions that write the outbox: walrelay cutover plan names them",
                );
                sleep(LOCK_PAUSE).await;
            }
            Err(error) if error.sqlstate() == Some(LOCKED) => {
                let what = "transactions that write the outbox do not end";
                return Err(Failure::new("move-locked", Exit::Temporary, what)
                    .caused_by(error)
                    .remedy("end them (pg_stat_activity, pg_prepared_xacts), and begin again"));
            }
            Err(error) => return Err(failure(error)),
        }
    }
}

/// Lifts the fence of a drain that failed, so that services go on.
async fn lift(
    session: &mut Session,
    place: &Place,
    before: &PlaceState,
    error: Failure,
) -> Failure {
    let slot = place.server.slot();
    let undone = undo_fence(session, slot, &before.here, before.own());
    match undone.await {
        Ok(()) => Failure {
            what: format!("{}: the fence is lifted, nothing was changed", error.what),
            ..error
        },
        Err(why) => still_fenced(error, &why.to_string()),
    }
}

fn still_fenced(error: Failure, why: &str) -> Failure {
    print_notice(&format!("the fence may still be in place: {why}"));
    error.remedy("lift the fence: walrelay move abort")
}
