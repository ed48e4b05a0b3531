//! `walrelay cutover switch`: the polling relay stops, walrelay publishes what is not marked and makes its slot.

use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;
use walrelay_walsender::{Session, SessionKind, quote_literal};

use super::super::Env;
use super::super::connect::block_on;
use super::super::run::{Run, asked_to_stop_or};
use super::super::server::{Server, failure};
use super::super::slots::warn;
use super::plan::{lockers_sql, slot_exists};
use super::{INTERVAL, gone, marking, needs_unsent, say, stop};
use crate::cli::{Exit, Failure, SwitchCutoverArgs};
use crate::postgres::ConfirmedError;
use crate::telemetry::{World, log_to_stderr};

pub(super) fn switch(
    args: &SwitchCutoverArgs,
    server: &Server,
    env: Env<'_>,
) -> Result<(), Failure> {
    let config = &server.config;
    needs_unsent(config)?;
    let unmarked = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let taken = server.find_slot(&mut session).await.map_err(failure)?;
        if taken.is_some() {
            return Err(slot_exists(&config.source.slot));
        }
        let unmarked = marking(config).unmarked(&mut session).await;
        session.close().await;
        unmarked.map_err(failure)
    }))??;
    let steps = format!(
        "1. The polling relay stops. Events wait from then on.\n\
         2. Transactions that write or lock the outbox now end.\n\
         3. walrelay publishes the rows that are not marked as sent, {unmarked} now, and makes slot {}. Rows that the \
         polling relay published and did not mark are repeated.\n\
         4. You start `walrelay run`, which goes on from there.\n\
         If it fails before the slot is made, start the polling relay again: nothing was marked.\n",
        config.source.slot
    );
    if args.ask.change.dry_run {
        return say(&steps);
    }
    warn(&steps);
    stop(
        "the polling relay",
        args.stop_poller.as_deref(),
        args.ask.yes,
    )?;
    block_on(Box::pin(no_locks(args, server)))??;
    // The relay's own log says how far the snapshot is.
    let errors = log_to_stderr(config.log, Some(&config.source.slot), env);
    let mut once = config.clone();
    // Bookmarks and pruning begin with `walrelay run`.
    once.retention = None;
    once.prune = None;
    let run = Run {
        config: &once,
        env,
        accept_gap: false,
        errors,
    };
    run.until(World::new(env), || asked_to_stop_or(slot_made(server)))?;
    let made = block_on(Box::pin(exists(server)))??;
    if !made {
        let what = "the switch was interrupted: the slot was not made";
        return Err(Failure::new("cutover-interrupted", Exit::Temporary, what).remedy(
            "begin it again, or start the polling relay again: nothing was marked, and what was published is repeated",
        ));
    }
    say(&format!(
        "slot {} is made, and all rows that were not marked are published.\nStart walrelay run now, then look with \
         walrelay cutover verify.\n",
        config.source.slot
    ))
}

/// Waits until the sessions and the transactions of the polling relay are gone.
async fn no_locks(args: &SwitchCutoverArgs, server: &Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    if let Some(name) = &args.poller {
        let sql = format!(
            "SELECT format('pid %s, %s', pid, state) FROM pg_catalog.pg_stat_activity \
             WHERE application_name = {} AND pid <> pg_catalog.pg_backend_pid()",
            quote_literal(name)
        );
        gone(
            &mut session,
            &sql,
            args.patience,
            "sessions of the polling relay",
        )
        .await?;
    }
    // Those of now: transactions that begin later are not the polling relay's.
    let lockers = lockers_sql(server);
    let now = session.query(&lockers).await.map_err(failure)?;
    let now = now.iter().filter_map(|row| row.get(1).map(quote_literal));
    let now: Vec<String> = now.collect();
    if !now.is_empty() {
        let sql = format!(
            "SELECT who FROM ({lockers}) AS held WHERE virtualtransaction IN ({})",
            now.join(", ")
        );
        gone(
            &mut session,
            &sql,
            args.patience,
            "transactions that lock the outbox",
        )
        .await?;
    }
    session.close().await;
    Ok(())
}

async fn exists(server: &Server) -> Result<bool, Failure> {
    let mut session = server.connect().await?;
    let found = server.find_slot(&mut session).await.map_err(failure)?;
    session.close().await;
    Ok(found.is_some())
}

/// Resolves when the relay has made the slot and confirms positions in it.
async fn slot_made(server: &Server) {
    let mut connected: Option<Session> = None;
    loop {
        sleep(INTERVAL).await;
        let session = match &mut connected {
            Some(session) => session,
            none => match Session::connect(&server.info, SessionKind::Sql, &[]).await {
                Ok(session) => none.insert(session),
                // The relay logs what is wrong with the server.
                Err(error) => {
                    debug!(%error, "the slot cannot be looked at");
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            },
        };
        let looked = async {
            if server.find_slot(session).await?.is_none() {
                return Ok(false);
            }
            // The stream goes on when it confirms what is committed now.
            match marking(&server.config).wait_confirmed(session).await {
                Ok(()) => Ok(true),
                Err(ConfirmedError::NotConfirmed { .. }) => Ok(false),
                Err(ConfirmedError::Sql(error)) => Err(error),
            }
        };
        match looked.await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                debug!(%error, "the slot cannot be looked at");
                connected = None;
            }
        }
    }
}
