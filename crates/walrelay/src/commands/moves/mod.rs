//! `walrelay move`: the outbox goes to another server, in steps of which each can be repeated.
//!
//! - [`place`]: one of the two servers, with its record of the move and what is in the way of the next step.
//! - [`fence`]: refuses inserts, on the new server until the switch, on the old one from the drain on.
//! - [`switch`]: the new server's slot, and the end of its fence. [`verify`]: whether all of that holds.
//!
//! # Invariants
//! - An event is committed either before the barrier of the old server, whose slot has confirmed the barrier under
//!   its fence, or after the new server's slot exists. So none is lost, none is sent by both, and each key keeps
//!   its order.
//! - The state is in the databases alone ([`walrelay_postgres_source::moves`]): a step that was killed is repeated.
//! - A step works under a lock of its slot, and looks again once it has the lock: its changes rest on that look.

mod fence;
mod place;
mod switch;
mod verify;

use serde_json::json;
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::moves::{MoveRecord, MoveState, abort_move, lift_sql};

use crate::cli::{AbortMoveArgs, MoveCommand, PlanMoveArgs};
use crate::commands::assembly::block_on;
use crate::commands::terminal::confirm::ask_to_continue;
use crate::commands::{EnvVars, log_warnings, print_as, print_line, print_notice, print_text};
use place::{Place, PlaceState};

/// Runs `walrelay move`.
pub(crate) fn move_outbox(command: &MoveCommand, env: EnvVars<'_>) -> Result<Exit, Vec<Failure>> {
    let (config, admin) = match command {
        MoveCommand::Plan(args) => (&args.config, Some(&args.admin)),
        MoveCommand::Prepare(args) => (&args.change.config, Some(&args.admin)),
        MoveCommand::Drain(args) => (&args.ask.change.config, Some(&args.admin)),
        MoveCommand::Switch(args) => (&args.ask.change.config, Some(&args.admin)),
        MoveCommand::Verify(args) => (&args.config, None),
        MoveCommand::Abort(args) => (&args.ask.change.config, Some(&args.admin)),
    };
    let place = Place::load(config, admin, env)?;
    let server = &place.server;
    log_warnings(server.process.log, Some(server.slot()), env);
    let former = |from: Option<&std::path::PathBuf>| {
        let former = from.map(|path| Place::load_former(path, config, env));
        let former = former.transpose()?;
        if let Some(former) = &former {
            former.check_same_outbox(&place)?;
        }
        Ok::<_, Vec<Failure>>(former)
    };
    let done = match command {
        MoveCommand::Plan(args) => plan(args, &place),
        MoveCommand::Prepare(args) => fence::prepare(args, &place),
        MoveCommand::Drain(args) => fence::drain(args, &place),
        MoveCommand::Switch(args) => {
            switch::switch(args, &place, former(args.from.as_ref())?.as_ref())
        }
        MoveCommand::Verify(args) => {
            let former = former(args.from.as_ref())?;
            return Ok(verify::verify(args, &place, former.as_ref())?);
        }
        MoveCommand::Abort(args) => abort(args, &place),
    };
    done?;
    Ok(Exit::Ok)
}

/// Shows the state on this server.
fn plan(args: &PlanMoveArgs, place: &Place) -> Result<(), Failure> {
    let look = block_on(Box::pin(place.look_once()))??;
    let object = json!({
        "slot": place.server.slot(),
        "record": look.own(),
        "copied": look.copied(),
        "system": look.here.system,
        "unfenced": look.unfenced.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "epoch": look.epoch.number,
        "confirmed": look.slot.as_ref().and_then(|slot| slot.confirmed),
        "obstacles": look.obstacles(place).iter().map(|failure| json!({
            "id": failure.id,
            "what": failure.what,
            "remedy": failure.remedy,
        })).collect::<Vec<_>>(),
    });
    print_as(args.output, &look.text(place), &object)
}

/// Gives the move up on this server.
fn abort(args: &AbortMoveArgs, place: &Place) -> Result<(), Failure> {
    let look = block_on(Box::pin(place.look_once()))??;
    if args.ask.change.dry_run {
        let lifts = block_on(Box::pin(async {
            let mut session = place.connect().await?;
            let lifts = lift_sql(&mut session, place.server.slot()).await?;
            session.close().await;
            Ok::<_, Failure>(lifts)
        }))??;
        return print_text(
            &lifts
                .iter()
                .flat_map(|lift| [lift, ";\n"])
                .collect::<String>(),
        );
    }
    let Some(record) = to_give_up(&look, place)? else {
        return print_line("no move is recorded here, and the outbox is not fenced by one");
    };
    if record.state == MoveState::Drained {
        print_notice(
            "lifting the fence of a server that was drained. If another server was switched to since, services that \
             still write here write events which the other one does not have",
        );
    }
    if !args.ask.yes {
        ask_to_continue(not_agreed())?;
    }
    block_on(Box::pin(async {
        let mut session = place.connect_locked().await?;
        let look = place.look(&mut session).await?;
        to_give_up(&look, place)?;
        let slot = place.server.slot();
        abort_move(&mut session, slot)
            .await
            .map_err(place::failure)?;
        session.close().await;
        Ok::<_, Failure>(())
    }))??;
    print_line("the fence is lifted: services can write events here")
}

/// Returns the record of a move that can be given up; `None` if there is none.
fn to_give_up<'a>(look: &'a PlaceState, place: &Place) -> Result<Option<&'a MoveRecord>, Failure> {
    let Some(record) = look.own().or(look.copied()) else {
        return Ok(None);
    };
    let slot = place.server.slot();
    if record.state == MoveState::Switched {
        let what = "the outbox was moved to this server: there is nothing to give up here";
        return Err(Failure::new("move-state", Exit::Usage, what)
            .remedy("to move it back, drain this server and switch the other one"));
    }
    // Its log has the replicated rows, which the old server's relay sends.
    if record.state == MoveState::Prepared && look.slot.is_some() {
        let what = format!("a relay that reads slot {slot} would send the replicated rows again");
        let remedy =
            format!("stop the relay of this server, run walrelay slots drop {slot}, and try again");
        return Err(Failure::new("move-state", Exit::Usage, what).remedy(remedy));
    }
    Ok(Some(record))
}

fn not_agreed() -> Failure {
    Failure::new("move-not-agreed", Exit::Usage, "nothing was changed")
        .remedy("look with --dry-run, then say --yes to go on without being asked")
}
