//! `walrelay cutover switch`: stops the polling relay, publishes the rows that it has not marked,
//! and creates the slot.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;
use tracing::debug;
use walrelay_failure::{Exit, Failure};
use walrelay_observe::{RunObserver, log_to_stderr};
use walrelay_postgres_source::ConfirmedError;
use walrelay_walsender::{Error, Session, SessionKind, quote_literal};

use super::plan::{lockers_sql, slot_exists_already};
use super::{INTERVAL, check_snapshot_mode, marking, stop, wait_until_gone};
use crate::cli::SwitchCutoverArgs;
use crate::commands::EnvVars;
use crate::commands::assembly::block_on;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::stop_signal_or;
use crate::commands::delivery::relay::RelayRun;
use crate::commands::{print_as, print_notice};

pub(super) fn switch(
    args: &SwitchCutoverArgs,
    server: &Server,
    env: EnvVars<'_>,
) -> Result<(), Failure> {
    let config = &server.config;
    check_snapshot_mode(config)?;
    let unmarked = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let slot = server.find_slot(&mut session).await?;
        if slot.is_some() {
            return Err(slot_exists_already(&config.source.slot));
        }
        let unmarked = marking(config).unmarked(&mut session).await;
        session.close().await;
        Ok::<_, Failure>(unmarked?)
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
        let object = json!({ "slot": config.source.slot, "unmarked_rows": unmarked });
        return print_as(args.output, &steps, &object);
    }
    print_notice(&steps);
    stop(
        "the polling relay",
        args.stop_poller.as_deref(),
        args.ask.yes,
    )?;
    block_on(Box::pin(wait_for_polling_relay(args, server)))??;
    // The relay logs the progress of the snapshot.
    let errors = log_to_stderr(server.process.log, &[&config.source.slot], env);
    let mut once = config.clone();
    // The rolling bookmark and pruning begin with `walrelay run`, which starts only once this command has
    // made the slot. Rows that are published are marked before the slot is made.
    once.retention = None;
    if let Some(prune) = &mut once.prune {
        prune.keep = None;
    }
    let relay = RelayRun {
        config: &once,
        process: &server.process,
        env,
        args: None,
        accept_gap: false,
        accept_loss: false,
        switches: true,
        errors,
    };
    relay.run_until(RunObserver::new(env), || {
        stop_signal_or(wait_until_confirming(server))
    })?;
    let slot = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let slot = server.find_slot(&mut session).await?;
        session.close().await;
        Ok::<_, Failure>(slot)
    }))??;
    if slot.is_none() {
        let what = "the switch was interrupted: the slot was not made";
        return Err(Failure::new("cutover-interrupted", Exit::Temporary, what).remedy(
            "begin it again, or start the polling relay again: published rows that are not marked yet are repeated",
        ));
    }
    let done = format!(
        "slot {} is made, and all rows that were not marked are published.\nStart walrelay run now, then look with \
         walrelay cutover verify.\n",
        config.source.slot
    );
    print_as(args.output, &done, &json!({ "slot": config.source.slot }))
}

/// Waits until the sessions of the polling relay, and the transactions that lock the outbox now,
/// have ended.
async fn wait_for_polling_relay(args: &SwitchCutoverArgs, server: &Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    if let Some(name) = &args.poller {
        let sql = format!(
            "SELECT format('pid %s, %s', pid, state) FROM pg_catalog.pg_stat_activity \
             WHERE application_name = {} AND pid <> pg_catalog.pg_backend_pid()",
            quote_literal(name)
        );
        let what = "sessions of the polling relay";
        wait_until_gone(&mut session, &sql, args.patience, what).await?;
    }
    // Transactions that begin later are not the polling relay's.
    let lockers = lockers_sql(server);
    let now = session.query(&lockers).await?;
    let now = now.iter().filter_map(|row| row.get(1).map(quote_literal));
    let now: Vec<String> = now.collect();
    if !now.is_empty() {
        let sql = format!(
            "SELECT who FROM ({lockers}) AS held WHERE virtualtransaction IN ({})",
            now.join(", ")
        );
        let what = "transactions that lock the outbox";
        wait_until_gone(&mut session, &sql, args.patience, what).await?;
    }
    session.close().await;
    Ok(())
}

/// Resolves once the relay has created the slot and confirms positions in it.
async fn wait_until_confirming(server: &Server) {
    let mut session = None;
    loop {
        sleep(INTERVAL).await;
        match is_confirming(server, &mut session).await {
            Ok(true) => return,
            Ok(false) => {}
            // The relay itself logs errors of the server.
            Err(error) => {
                debug!(%error, "the slot cannot be looked at");
                session = None;
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Checks whether the relay has created the slot and confirms positions in it. Keeps the session
/// open.
async fn is_confirming(server: &Server, session: &mut Option<Session>) -> Result<bool, Error> {
    let session = match session {
        Some(session) => session,
        none => none.insert(Session::connect(&server.info, SessionKind::Sql, &[]).await?),
    };
    if server.find_slot(session).await?.is_none() {
        return Ok(false);
    }
    // The relay streams once it confirms a position at or above the present end of the WAL.
    match marking(&server.config).wait_confirmed(session).await {
        Ok(()) => Ok(true),
        Err(ConfirmedError::Sql(error)) => Err(error),
        Err(_) => Ok(false),
    }
}
