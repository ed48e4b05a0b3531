//! `walrelay cutover rollback`: marks the rows that walrelay published, and drops its slot, so that
//! the polling relay can continue.

use tokio::time::Instant;
use walrelay_walsender::{Session, quote_literal};

use super::super::connect::{block_on, not_carried};
use super::super::server::Server;
use super::super::{print_notice, print_text};
use super::{marking, stop, wait_until_gone};
use crate::cli::{Exit, Failure, RollbackCutoverArgs};
use crate::postgres::{ConfirmedError, MarkError, Marking, Original, SlotRow, script};

pub(super) fn rollback(args: &RollbackCutoverArgs, server: &Server) -> Result<(), Failure> {
    let config = &server.config;
    let marking = marking(config);
    if marking.set.is_empty() {
        let what = "[source] mark_sent is not set: rows that walrelay published cannot be marked";
        return Err(Failure::new("cutover-mark", Exit::Config, what).remedy(
            "set it to what the polling relay does with a row that is sent, such as dispatched_at = now()",
        ));
    }
    let unmarked = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        find_intact_slot(&mut session, server).await?;
        let unmarked = marking.unmarked(&mut session).await;
        session.close().await;
        Ok::<_, Failure>(unmarked?)
    }))??;
    let state_file = config.source.state_file.as_ref();
    let steps = format!(
        "1. walrelay stops. Events wait from then on.\n\
         2. Of the rows that are not marked as sent, {unmarked} now, those whose commit is confirmed in slot {} are \
         marked: SET {}. Events that were in flight stay unmarked, and are repeated.\n\
         3. The slot is dropped{}.\n\
         4. You start the polling relay, which sends what is not marked.\n",
        config.source.slot,
        marking.set,
        state_file.map_or_else(String::new, |path| format!(
            ", and {} removed",
            path.display()
        )),
    );
    if args.ask.change.dry_run {
        return print_text(&steps);
    }
    print_notice(&steps);
    stop("walrelay run", args.stop_relay.as_deref(), args.ask.yes)?;
    let done = block_on(Box::pin(mark_and_drop(args, server, &marking)))??;
    if let Some(path) = state_file
        && let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        let what = format!("{done}, but {} cannot be removed", path.display());
        return Err(Failure::new("cutover-state-file", Exit::Unavailable, what)
            .caused_by(error)
            .remedy("remove it before the next switch. The polling relay can be started now"));
    }
    print_text(&format!("{done}.\nStart the polling relay now.\n"))
}

/// Waits until the slot has no reader, marks the rows whose commit is confirmed in it, and drops
/// it.
async fn mark_and_drop(
    args: &RollbackCutoverArgs,
    server: &Server,
    marking: &Marking,
) -> Result<String, Failure> {
    let source = &server.config.source;
    let mut session = server.connect().await?;
    let readers = format!(
        "SELECT format('pid %s reads slot %s', active_pid, slot_name) FROM pg_catalog.pg_replication_slots \
         WHERE slot_name = {} AND active_pid IS NOT NULL",
        quote_literal(server.slot())
    );
    wait_until_gone(&mut session, &readers, args.patience, "the relay").await?;
    let slot = find_intact_slot(&mut session, server).await?;
    let begun = Instant::now();
    let original = Original {
        info: server.info.clone(),
        slot: slot.name,
        publication: source.publication.clone(),
        tables: source.tables.clone(),
        messages: source.messages.is_some(),
        wal_sender_timeout: source.wal_sender_timeout,
    };
    let marked = marking.run_stopped(&mut session, &original).await;
    let marked = marked.map_err(mark_failure)?;
    session.query(&script::drop_slot(server.slot())).await?;
    session.close().await;
    Ok(format!(
        "marked {marked} rows in {:.1} s, and dropped slot {}",
        begun.elapsed().as_secs_f64(),
        server.slot()
    ))
}

/// The configured slot; fails if it does not exist or is lost.
async fn find_intact_slot(session: &mut Session, server: &Server) -> Result<SlotRow, Failure> {
    let slot = server.find_slot(session).await?;
    slot.filter(|slot| !slot.is_lost()).ok_or_else(|| {
        let what = format!(
            "there is no slot {}, or it is lost: nothing tells what walrelay published",
            server.slot()
        );
        Failure::new("cutover-no-slot", Exit::Config, what).remedy(
            "if walrelay was never switched to, start the polling relay. Otherwise compare the outbox with Kafka before",
        )
    })
}

fn mark_failure(error: MarkError) -> Failure {
    match error {
        MarkError::Postgres(error) => error.into(),
        MarkError::Confirmed(ConfirmedError::Sql(error)) => error.into(),
        MarkError::Decode(error) => {
            let what = "the log between the slot's position and its end cannot be decoded";
            Failure::new("cutover-decode", Exit::Data, what)
                .caused_by(error)
                .remedy("nothing is marked; report this with the version of Postgres")
        }
        MarkError::Key(table) => Failure::new(
            "cutover-key",
            Exit::Config,
            format!(
                "table {table} has no primary key in the publication: its rows cannot be told apart"
            ),
        )
        .remedy("give it a primary key, or mark the rows by hand: those that are in Kafka"),
        MarkError::WithoutRow(events) => {
            let what = "the polling relay would never send what has no row; nothing was marked, and the slot is there";
            Failure::new("cutover-unsent-events", Exit::Temporary, what)
                .caused_by(events)
                .remedy(
                    "let walrelay run send them, end the writers that use outbox.emit or delete their rows, and begin \
                     again",
                )
        }
        MarkError::Confirmed(ConfirmedError::NotCarried(why)) => not_carried(why),
        error @ MarkError::Confirmed(ConfirmedError::InVain(_)) => {
            Failure::new("cutover-mark", Exit::Config, error.to_string()).remedy(
                "correct mark_sent or snapshot_where; nothing was marked, and the slot is there",
            )
        }
        error @ MarkError::Confirmed(ConfirmedError::NotConfirmed { .. }) => {
            Failure::new("cutover-busy", Exit::Temporary, error.to_string())
                .remedy("begin it again")
        }
    }
}
