//! `walrelay cutover rollback`: marks the rows that walrelay published and could not mark yet, and
//! drops its slot, so that the polling relay can continue.

use std::fmt;

use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};
use walrelay_failure::{Exit, Failure};
use walrelay_postgres_source::moves::{MoveState, find_move};
use walrelay_postgres_source::{
    ConfirmedError, DeadLetters, DeadLettersError, EventRows, EventsWithoutRow, HeldSlot, KeptBy,
    MarkError, Marking, Original, RollbackError, SlotRow, assigned_columns, check_events_have_rows,
    position_note, script, snapshot_record,
};
use walrelay_relay::Chain;
use walrelay_walsender::{ErrorClass, Session, quote_literal};

use super::{INTERVAL, marking, no_slot, stop, wait_until_gone};
use crate::cli::RollbackCutoverArgs;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{block_on, dead_letters, router};
use crate::commands::database::kept::{KeptBookmark, keep_bookmark};
use crate::commands::{print_as, print_notice};

pub(super) fn rollback(args: &RollbackCutoverArgs, server: &Server) -> Result<(), Failure> {
    let config = &server.config;
    let marking = marking(config);
    if marking.set.is_empty() {
        let what = "[source] mark_sent is not set: rows that walrelay published cannot be marked";
        return Err(Failure::new("cutover-mark", Exit::Config, what).remedy(
            "set it as the polling relay marks a sent row, such as dispatched_at = now()",
        ));
    }
    let open = dead_letters(config, || None)?;
    let unmarked = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        find_intact_slot(&mut session, server).await?;
        read_dead_letters(&mut session, (args, server), &marking, &open).await?;
        let unmarked = marking.unmarked(&mut session).await;
        session.close().await;
        Ok::<_, Failure>(unmarked?)
    }))??;
    let state_file = config.source.state_file.as_ref();
    let steps = format!(
        "1. walrelay stops, also relays that stand by. Events wait from then on.\n\
         2. {unmarked} rows are not marked as sent now. Of these, rows that slot {} has confirmed, and that could not be \
         marked so far, are marked: SET {}. Events that were in flight stay unmarked, and are repeated.\n{}\
         3. The slot is dropped{}{}.\n\
         4. You start the polling relay, which sends the unmarked rows.\n",
        config.source.slot,
        marking.set,
        match open.open() {
            open if args.mark_dead_letters => format!(
                "   Rows of the {open} open dead letters, which were not sent, are marked, too.\n"
            ),
            0 => String::new(),
            open => format!(
                "   {open} open dead letters are in topic {}: their rows, which were not sent, stay unmarked, so the \
                 polling relay sends them (--mark-dead-letters marks them).\n",
                config.poison.topic
            ),
        },
        if args.no_bookmark {
            ""
        } else {
            ", and a copy of it is kept as a bookmark"
        },
        state_file.map_or_else(String::new, |path| format!(
            ", and {} removed",
            path.display()
        )),
    );
    if args.ask.change.dry_run {
        let object = json!({
            "slot": config.source.slot,
            "unmarked_rows": unmarked,
            "open_dead_letters": open.open(),
        });
        return print_as(args.output, &steps, &object);
    }
    print_notice(&steps);
    stop("walrelay run", args.stop_relay.as_deref(), args.ask.yes)?;
    // Read anew: the relay may have made the topic meanwhile.
    let open = dead_letters(config, || None)?;
    let dropped = block_on(Box::pin(mark_and_drop(args, server, &marking, &open)))??;
    let done = &dropped.done;
    if let Some(path) = state_file
        && let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        let what = format!("{done}, but {} cannot be removed", path.display());
        return Err(Failure::new("cutover-state-file", Exit::Unavailable, what)
            .caused_by(error)
            .remedy("remove it before the next switch. The polling relay can be started now"));
    }
    dropped.left?;
    let text = format!(
        "{done}.\n{}Start the polling relay now. walrelay has no slot any more: do not start walrelay run before the next \
         walrelay cutover switch.\n",
        done.bookmark.as_ref().map_or_else(String::new, |name| format!(
            "Postgres keeps the log from there on for bookmark {name}, so drop it soon: walrelay bookmark drop {name}\n"
        )),
    );
    print_as(args.output, &text, done)
}

/// A slot that was dropped.
struct Dropped {
    done: Done,
    /// An error if the kept bookmark holds events that no polling relay would send.
    left: Result<(), Failure>,
}

/// Reads the open dead letters. If they need not be known, an error is only reported.
async fn read_dead_letters(
    session: &mut Session,
    (args, server): (&RollbackCutoverArgs, &Server),
    marking: &Marking,
    dead_letters: &DeadLetters,
) -> Result<(), Failure> {
    match dead_letters.read().await {
        Ok(()) if args.mark_dead_letters => {
            let systems = systems_with_rows(session, server).await?;
            let checked = marking.check_dead_letters(dead_letters, &systems);
            checked.map_err(dead_letters_failure)
        }
        Err(error) if args.mark_dead_letters => Err(dead_letters_failure(error)),
        Err(error) => {
            print_notice(&format!(
                "{}: how many there are is not known. Their rows stay unmarked",
                Chain(&error)
            ));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Returns the system identifiers of the clusters whose events have rows here: this one, and the one that the outbox was
/// moved from.
async fn systems_with_rows(session: &mut Session, server: &Server) -> Result<Vec<String>, Failure> {
    let own = server.identify().await?.system_id;
    let moves = find_move(session, server.slot()).await?;
    // After a failover, too: a standby has the rows of its primary.
    let moved = moves.find(&own);
    let moved = moved.filter(|record| record.state == MoveState::Switched);
    let former = moved.and_then(|record| record.former.clone());
    Ok(former.into_iter().chain([own]).collect())
}

/// Takes the slot when it has no reader, so that no relay can, marks the sent rows that are not marked
/// yet, keeps a copy of the slot, and drops it. Without a bookmark the copy is dropped at the end, unless it holds
/// events that no polling relay would send.
async fn mark_and_drop(
    args: &RollbackCutoverArgs,
    server: &Server,
    marking: &Marking,
    dead_letters: &DeadLetters,
) -> Result<Dropped, Failure> {
    let source = &server.config.source;
    let mut session = marking.connect_stopped(&server.info).await?;
    let mut original = Original {
        info: server.info.clone(),
        slot: server.slot().to_owned(),
        publication: source.publication.clone(),
        tables: source.tables.clone(),
        messages: source.messages.is_some(),
        wal_sender_timeout: source.wal_sender_timeout,
    };
    let marks = source.mark_sent.iter().chain(&source.mark_dead);
    let mut event_rows = EventRows {
        marking,
        marked_columns: marks.flat_map(|set| assigned_columns(set)).collect(),
        former_tables: &source.former_tables,
        pass_over: &source.pass_over,
        router: router(&server.config)?.0,
    };
    let mut held = hold_slot(args, &mut session, &original).await?;
    let begun = Instant::now();
    let work = async {
        let mut rows = marking
            .work_off_stopped(&mut session)
            .await
            .map_err(mark_failure)?;
        read_dead_letters(&mut session, (args, server), marking, dead_letters).await?;
        let redriven = marking.work_off_redriven(&mut session, dead_letters).await;
        rows += redriven.map_err(mark_failure)?;
        // The rows first: the log, read after them, has all their events that are not confirmed.
        let chosen = if args.mark_dead_letters {
            let chosen = marking.choose_dead_letter_rows(&mut session, dead_letters);
            Some(chosen.await.map_err(mark_failure)?)
        } else {
            None
        };
        let checked = check_events_have_rows(&mut session, &original, &mut event_rows).await;
        let unconfirmed = checked.map_err(log_failure)?;
        let (mut left, mut unconfirmed_rows) = (0, 0);
        if let Some(chosen) = &chosen {
            let marked = marking.mark_dead_letters(&mut session, chosen, &unconfirmed);
            let (marked, others) = marked.await.map_err(mark_failure)?;
            rows += marked;
            unconfirmed_rows = others;
        } else {
            let counted = marking.dead_letter_rows(&mut session, dead_letters).await;
            left = counted.map_err(mark_failure)?;
        }
        // What was emitted while the log was read.
        let checked = check_events_have_rows(&mut session, &original, &mut event_rows).await;
        checked.map_err(log_failure)?;
        let kept = keep_bookmark(&mut session, server.slot(), KeptBy::Rollback).await?;
        Ok::<_, Failure>((rows, left, unconfirmed_rows, kept))
    };
    let result = Box::pin(held.during(work)).await?;
    held.release().await;
    let (marked_rows, unmarked_rows, unconfirmed_rows, kept) = result?;
    let KeptBookmark { name, slot } = kept;
    let mut done = Done {
        marked_rows,
        unmarked_rows,
        unconfirmed_rows,
        dead_letter_topic: server.config.poison.topic.clone(),
        seconds: begun.elapsed().as_secs_f64(),
        dropped_slot: None,
        bookmark: Some(name.clone()),
    };
    drop_slot(args, &mut session, server, &done).await?;
    done.dropped_slot = Some(server.slot().to_owned());
    // What was emitted before the slot was dropped.
    original.slot.clone_from(&slot);
    let checked = check_events_have_rows(&mut session, &original, &mut event_rows).await;
    let left = checked
        .map(|_| ())
        .map_err(|error| left_failure(error, &done, &name));
    if args.no_bookmark && left.is_ok() {
        session.query(&script::drop_slot(&slot)).await?;
        done.bookmark = None;
    }
    session.close().await;
    Ok(Dropped { done, left })
}

/// The result of a rollback.
#[derive(Debug, Serialize)]
struct Done {
    marked_rows: u64,
    /// Rows that stay unmarked, because their events are dead letters alone.
    unmarked_rows: u64,
    /// Rows with the id of a dead letter that stay unmarked, because their events are not confirmed.
    unconfirmed_rows: u64,
    dead_letter_topic: String,
    /// Time that the marks took.
    seconds: f64,
    dropped_slot: Option<String>,
    /// The name of the bookmark that keeps a copy of the slot.
    bookmark: Option<String>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "marked {} rows in {:.1} s",
            self.marked_rows, self.seconds
        )?;
        let (rows, topic) = (self.unmarked_rows, &self.dead_letter_topic);
        if rows > 0 {
            write!(
                f,
                ", left {rows} rows unmarked whose events are in topic {topic} alone"
            )?;
        }
        let rows = self.unconfirmed_rows;
        if rows > 0 {
            write!(
                f,
                ", left {rows} rows with the id of a dead letter unmarked, whose events are not confirmed"
            )?;
        }
        if let Some(slot) = &self.dropped_slot {
            write!(f, ", and dropped slot {slot}")?;
        }
        if let Some(bookmark) = &self.bookmark {
            write!(f, ", a copy of which is bookmark {bookmark}")?;
        }
        Ok(())
    }
}

/// Takes the slot once it has no reader.
async fn hold_slot(
    args: &RollbackCutoverArgs,
    session: &mut Session,
    original: &Original,
) -> Result<HeldSlot, Failure> {
    let begun = Instant::now();
    let readers = format!(
        "SELECT format('pid %s reads slot %s', active_pid, slot_name) FROM pg_catalog.pg_replication_slots \
         WHERE slot_name = {} AND active_pid IS NOT NULL",
        quote_literal(&original.slot)
    );
    loop {
        let left = args.patience.saturating_sub(begun.elapsed());
        let what = "the relay, or one that stands by,";
        wait_until_gone(session, &readers, left, what).await?;
        match HeldSlot::take(original).await {
            Ok(held) => return Ok(held),
            // A relay that stands by was faster.
            Err(error) if error.class() == ErrorClass::SlotInUse => sleep(INTERVAL).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Drops the slot, which is released.
async fn drop_slot(
    args: &RollbackCutoverArgs,
    session: &mut Session,
    server: &Server,
    done: &Done,
) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        match session.query(&script::drop_slot(server.slot())).await {
            // A slot of the same name is another one.
            Ok(_) => {
                snapshot_record::forget(session, server.slot()).await?;
                return Ok(position_note::forget(session, server.slot()).await?);
            }
            Err(error)
                if error.class() == ErrorClass::SlotInUse && begun.elapsed() < args.patience =>
            {
                sleep(INTERVAL).await;
            }
            Err(error) => {
                let what = format!("{done}, but slot {} is not dropped", server.slot());
                return Err(Failure::new("cutover-busy", Exit::Temporary, what)
                    .caused_by(error)
                    .remedy(
                        "stop the relay that reads it, and begin again: only rows that it had sent are marked",
                    ));
            }
        }
    }
}

fn dead_letters_failure(error: DeadLettersError) -> Failure {
    let what =
        "rows with an open dead letter were not sent, and are not known: nothing was changed";
    let (exit, remedy) = match error {
        DeadLettersError::OtherCluster { .. } => (
            Exit::Data,
            "redrive or drop these dead letters (walrelay dlq list), or give each cluster its own [poison] topic",
        ),
        _ => (
            Exit::Temporary,
            "see to the sink, or to the dead letters: walrelay dlq list",
        ),
    };
    let remedy = format!(
        "{remedy}. Without --mark-dead-letters their rows stay unmarked, and the polling relay sends them"
    );
    Failure::new("cutover-dead-letters", exit, what)
        .caused_by(error)
        .remedy(remedy)
}

/// Finds the configured slot; fails if it does not exist or is lost.
async fn find_intact_slot(session: &mut Session, server: &Server) -> Result<SlotRow, Failure> {
    let slot = server.find_slot(session).await?;
    let slot = slot.ok_or_else(|| no_slot(server))?;
    if slot.is_lost() {
        let what = format!(
            "slot {} is lost: nothing shows which events walrelay published",
            server.slot()
        );
        return Err(
            Failure::new("cutover-no-slot", Exit::Config, what).remedy(format!(
                "compare the outbox with {} before the polling relay is started",
                server.sink_title()
            )),
        );
    }
    Ok(slot)
}

fn mark_failure(error: MarkError) -> Failure {
    match error {
        MarkError::Postgres(error) => error.into(),
        MarkError::Confirmed(ConfirmedError::Sql(error)) => error.into(),
        MarkError::Confirmed(ConfirmedError::DeadLetters(why)) => dead_letters_failure(why),
        error @ MarkError::Confirmed(ConfirmedError::InVain(_)) => {
            Failure::new("cutover-mark", Exit::Config, error.to_string()).remedy(
                "correct mark_sent or snapshot_where; no row of this table was marked, and the slot is there",
            )
        }
        error @ MarkError::NoKey(_) => Failure::new("cutover-key", Exit::Config, error.to_string())
            .remedy(
                "give it a primary key, or name it in [source] tables; or mark by hand the rows of redriven dead \
                 letters, and those whose keys walrelay_state.unmarked has, and delete these keys",
            ),
        error @ (MarkError::Left(_)
        | MarkError::DeadCountsAsSent(_)
        | MarkError::NoDeadTable
        | MarkError::Confirmed(_)) => {
            Failure::new("cutover-busy", Exit::Temporary, error.to_string())
                .remedy("begin it again: the slot is there")
        }
    }
}

fn log_failure(error: RollbackError) -> Failure {
    match error {
        RollbackError::Postgres(error) => error.into(),
        RollbackError::Decode(error) => {
            let what = "the log between the slot's position and its end cannot be decoded";
            Failure::new("cutover-decode", Exit::Data, what)
                .caused_by(error)
                .remedy("nothing is marked; report this with the version of Postgres")
        }
        RollbackError::Key(table) => Failure::new(
            "cutover-key",
            Exit::Config,
            format!(
                "table {table} has no primary key in the publication: its rows cannot be told apart"
            ),
        )
        .remedy("give it a primary key, or mark by hand the rows whose events were sent"),
        RollbackError::WithoutRow(events) => {
            let what = "the polling relay would never send events without a row; the slot is there";
            let remedy = format!(
                "let walrelay run send them, end the writers that use outbox.emit or delete their rows, and begin again{}",
                other_table(&events)
            );
            Failure::new("cutover-unsent-events", Exit::Temporary, what)
                .caused_by(events)
                .remedy(remedy)
        }
    }
}

/// Returns a part of a remedy for a table of the log that is no outbox now.
fn other_table(events: &EventsWithoutRow) -> String {
    let table = events.other_table.as_ref();
    table.map_or_else(String::new, |table| {
        format!(
            ". If walrelay run ends with table-unknown, set [source] former_tables = [\"{table}\"], or pass_over if its \
             rows are no events"
        )
    })
}

/// Makes the failure of a rollback whose slot is dropped, and whose bookmark may hold events without a row.
fn left_failure(error: RollbackError, done: &Done, bookmark: &str) -> Failure {
    let finding = match &error {
        RollbackError::WithoutRow(_) => "the polling relay would never send events without a row",
        _ => "whether the log holds events that have no row is not known",
    };
    let Failure {
        id, exit, source, ..
    } = log_failure(error);
    let failure = Failure {
        source,
        ..Failure::new(id, exit, format!("{done}, but {finding}"))
    };
    failure.remedy(format!(
        "end the writers that use outbox.emit or delete their rows, and send the events: walrelay replay --from \
         {bookmark}. Then start the polling relay"
    ))
}
