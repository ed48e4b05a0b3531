//! `walrelay move switch`: the new server's slot, and the end of its fence.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::sleep;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::moves::{
    MissingRows, MoveRecord, MoveState, finish_move, missing_rows_by_count, subscriptions,
};
use walrelay_postgres_source::{script, slots};
use walrelay_walsender::Session;

use super::not_agreed;
use super::place::{INSUFFICIENT_PRIVILEGE, Place, PlaceState, failure};
use crate::cli::SwitchMoveArgs;
use crate::commands::assembly::block_on;
use crate::commands::terminal::confirm::ask_to_continue;
use crate::commands::{print_as, print_notice};

/// The time that a subscription may take to apply what was committed before the barrier.
const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs `walrelay move switch`.
pub(super) fn switch(
    args: &SwitchMoveArgs,
    place: &Place,
    former: Option<&Place>,
) -> Result<(), Failure> {
    let already = || {
        let text = "this server was switched to already.\n";
        print_as(args.output, &text, &json!({ "slot": place.server.slot() }))
    };
    let (look, drained, former_epoch) = block_on(Box::pin(async {
        let mut session = place.connect().await?;
        let proof = proof(&mut session, args, place, former).await;
        let compared = match (&proof, former) {
            (Ok((look, ..)), Some(former))
                if look.state() != Some(MoveState::Switched) && !args.rows_arrived =>
            {
                check_rows(&mut session, place, former).await
            }
            _ => Ok(()),
        };
        session.close().await;
        compared?;
        proof
    }))??;
    if look.state() == Some(MoveState::Switched) {
        return already();
    }
    let steps = format!(
        "server {} was drained to {}: every event of it is delivered. Slot {} of this server is {}, and its outbox \
         accepts inserts from then on",
        drained.server.system,
        drained.barrier.unwrap_or(Lsn::ZERO),
        place.server.slot(),
        if look.slot.is_some() {
            "dropped and created again"
        } else {
            "created"
        }
    );
    if args.ask.change.dry_run {
        let object = json!({ "slot": place.server.slot(), "barrier": drained.barrier });
        return print_as(args.output, &format!("{steps}.\n"), &object);
    }
    print_notice(&steps);
    if !args.ask.yes {
        ask_to_continue(not_agreed())?;
    }
    // Before anything is changed.
    look.next_epoch(former_epoch, &drained, look.flushed)?;
    let switched = block_on(Box::pin(async {
        // Neither server's state changes from here on. What was looked at before the question may be over.
        let mut session = place.connect_locked().await?;
        let locked = match former {
            Some(former) => Some(former.connect_locked().await?),
            None => None,
        };
        let (look, drained, former_epoch) = proof(&mut session, args, place, former).await?;
        if look.state() == Some(MoveState::Switched) {
            return Ok(None);
        }
        let mut relay = place.server.connect().await?;
        let position = place_slot(&mut relay, place).await?;
        relay.close().await;
        let epoch = look.next_epoch(former_epoch, &drained, position)?;
        let slot = place.server.slot();
        let finished = finish_move(&mut session, slot, &look.here, &drained, (position, epoch));
        finished.await.map_err(failure)?;
        session.close().await;
        if let Some(locked) = locked {
            locked.close().await;
        }
        Ok::<_, Failure>(Some((position, epoch)))
    }))??;
    let Some((position, epoch)) = switched else {
        return already();
    };
    let raised = if epoch > former_epoch {
        format!(
            "The log begins lower than the former one's end: positions are published with epoch {epoch}.\n"
        )
    } else {
        String::new()
    };
    let text = format!(
        "slot {} is at {position}, and services can write events here.\n{raised}Start walrelay run with this configuration \
         now, and stop the relay of the old server.\n",
        place.server.slot()
    );
    let object = json!({ "slot": place.server.slot(), "position": position, "barrier": drained.barrier, "epoch": epoch });
    print_as(args.output, &text, &object)
}

/// Returns the record of the former server and its epoch, if everything shows that its events are delivered, and that
/// this server has no event yet.
async fn proof(
    session: &mut Session,
    args: &SwitchMoveArgs,
    place: &Place,
    former: Option<&Place>,
) -> Result<(PlaceState, MoveRecord, u8), Failure> {
    let look = place.look(session).await?;
    if look.state() == Some(MoveState::Switched)
        && let Some(record) = look.own().cloned()
    {
        let epoch = look.epoch.number;
        return Ok((look, record, epoch));
    }
    look.check_new(place)?;
    let (drained, epoch) = if let Some(former) = former {
        look.check_fence(
            "run walrelay move prepare on this server before your services reach it. If they have written here \
             already, the relay must send that: run walrelay init and run instead",
        )?;
        let (drained, epoch) = former_record(former, &look).await?;
        if !args.rows_arrived {
            wait_for_subscriptions(session, place, former, &drained).await?;
        }
        (drained, epoch)
    } else {
        let drained = copied_record(&look)?;
        look.check_fence(
            "this copy has lost its fence, so events may have been written here that no slot has: find them with \
             walrelay stuck",
        )?;
        // A copy has the epoch of the former server.
        (drained, look.epoch.number)
    };
    Ok((look, drained, epoch))
}

/// Returns the record that this database was copied with.
fn copied_record(look: &PlaceState) -> Result<MoveRecord, Failure> {
    if let Some(record) = look.copied()
        && record.state == MoveState::Drained
    {
        return Ok(record.clone());
    }
    let failure = |what: &str, remedy: &str| {
        Err(Failure::new("move-not-drained", Exit::Config, what).remedy(remedy))
    };
    match (look.copied(), look.state()) {
        (_, Some(MoveState::Drained | MoveState::Fenced)) => failure(
            "this is the server that was drained, not a copy of it",
            "run it on the new server; walrelay move abort lifts the fence here",
        ),
        (_, Some(MoveState::Prepared)) => failure(
            "this server was prepared for rows by replication: the record of the old server is there",
            "name the configuration of the old server: --from old.toml",
        ),
        (Some(record), _) if record.state == MoveState::Fenced => failure(
            "this copy was made before the drain of the old server had ended",
            "run walrelay move drain on the old server, and copy it after that",
        ),
        _ => failure(
            "nothing in this database shows that the old server was drained",
            "run walrelay move drain on the old server, and copy it after that; or name its configuration: --from",
        ),
    }
}

/// Reads the record of the former server itself, and its epoch.
async fn former_record(former: &Place, look: &PlaceState) -> Result<(MoveRecord, u8), Failure> {
    let there = former.look_once().await?;
    if there.here == look.here {
        let what = "--from names the server that is to be switched to";
        return Err(Failure::new("move-same-server", Exit::Usage, what)
            .remedy("name the configuration of the old server"));
    }
    let again = "run walrelay move drain on the old server";
    there.check_fence(again)?;
    match there.own() {
        Some(record) if record.state == MoveState::Drained => {
            Ok((record.clone(), there.epoch.number))
        }
        _ => {
            let what = "the old server is not drained";
            Err(Failure::new("move-not-drained", Exit::Config, what).remedy(again))
        }
    }
}

/// Waits until the subscriptions that fill the outbox have applied everything from before the barrier: a row that
/// arrives after the slot was created would be sent a second time.
async fn wait_for_subscriptions(
    session: &mut Session,
    place: &Place,
    former: &Place,
    drained: &MoveRecord,
) -> Result<(), Failure> {
    let barrier = drained.barrier.unwrap_or(Lsn::MAX);
    let mut publisher = former.server.connect().await?;
    let until = Instant::now() + PATIENCE;
    loop {
        let subscriptions = subscriptions(session, place.tables())
            .await
            .map_err(failure)?;
        if subscriptions.is_empty() {
            let what = "no subscription fills the outbox of this server: nothing shows that the rows from before the drain are here";
            return Err(Failure::new("move-behind", Exit::Config, what).remedy(
                "if another service copies them, wait until it has ended; then say --rows-arrived: a row that arrives \
                 after the switch is sent a second time",
            ));
        }
        let all = slots(&mut publisher).await?;
        let behind = subscriptions.iter().find(|subscription| {
            let slot = all.iter().find(|slot| slot.name == subscription.slot);
            let applied = slot.and_then(|slot| slot.confirmed);
            !subscription.is_copied || applied.is_none_or(|applied| applied < barrier)
        });
        let Some(behind) = behind else {
            publisher.close().await;
            return Ok(());
        };
        let is_known = all.iter().any(|slot| slot.name == behind.slot);
        if !is_known || Instant::now() > until {
            let why = if !is_known {
                "reads another server than the old one"
            } else if behind.is_copied {
                "has not applied everything from before the drain"
            } else {
                "has not copied the outbox yet"
            };
            let what = format!(
                "subscription {} {why}: this server misses rows",
                behind.name
            );
            return Err(Failure::new("move-behind", Exit::Temporary, what)
                .remedy("see to the subscription (pg_stat_subscription), and begin again"));
        }
        sleep(INTERVAL).await;
    }
}

/// Fails if this server lacks rows of the old one: a subscription skipped some, for example. Their events are
/// delivered, but a later copy of the rows would be sent a second time.
async fn check_rows(session: &mut Session, place: &Place, former: &Place) -> Result<(), Failure> {
    let mut there = former.connect().await?;
    let prunes = former.server.config.prune.is_some();
    for table in place.tables() {
        let missing = missing_rows_by_count(session, &mut there, table, prunes).await;
        let missing = match missing {
            Err(error) if error.sqlstate() == Some(INSUFFICIENT_PRIVILEGE) => {
                print_notice(&format!(
                    "rows are not compared with those of the old server: a role may not read {table}"
                ));
                continue;
            }
            missing => missing.map_err(failure)?,
        };
        if let Some(missing) = missing {
            let what = missing_text(&missing);
            return Err(Failure::new("move-rows", Exit::Config, what).remedy(
                "copy them here before the switch: after SET session_replication_role = replica the fence accepts an INSERT, \
                 and the relay does not send it. If you do not need them here, say --rows-arrived: their events are \
                 delivered",
            ));
        }
    }
    there.close().await;
    Ok(())
}

/// Describes rows that this server lacks.
pub(super) fn missing_text(missing: &MissingRows) -> String {
    let MissingRows {
        table,
        rows,
        examples,
    } = missing;
    let named = if examples.is_empty() {
        String::new()
    } else {
        format!(", for example {}", examples.join(", "))
    };
    format!("rows of the old server's {table} that are missing here: {rows}{named}")
}

/// Creates the slot, in place of the one that is there: under the fence there is no event before it that was not
/// sent. Returns its position.
///
/// An advanced slot would be back at its former position after a crash of the server, because the new one is
/// written at a checkpoint. A created one is written before the statement ends.
async fn place_slot(session: &mut Session, place: &Place) -> Result<Lsn, Failure> {
    let name = place.server.slot();
    // The statement of a step that was killed ends before, so it drops or makes no slot later on.
    place.lock_slot(session).await?;
    if place.server.find_slot(session).await?.is_some() {
        session.query(&script::drop_slot(name)).await?;
    }
    print_notice(&format!(
        "creating slot {name}: Postgres waits for all open transactions first"
    ));
    let failover = place.server.config.source.failover;
    session.query(&script::create_slot(name, failover)).await?;
    let slot = place.server.find_slot(session).await?;
    slot.and_then(|slot| slot.confirmed).ok_or_else(|| {
        Failure::new(
            "move-slot",
            Exit::Temporary,
            format!("slot {name} has no position"),
        )
        .remedy("run walrelay move switch again")
    })
}
