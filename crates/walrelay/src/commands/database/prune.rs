//! `walrelay prune`: deletes sent rows that are old enough, or drops their partitions.

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use walrelay_failure::{Chain, Exit, Failure};
use walrelay_postgres_source::{
    Change, ConfirmedError, DeadLetters, DifferenceKind, Evidence, KeysElsewhere, NoAccount,
    PruneError, Pruning, Selection, Unaccounted,
};
use walrelay_walsender::{ConnInfo, Session};

use crate::cli::PruneArgs;
use crate::commands::assembly::server::Server;
use crate::commands::assembly::{
    account_columns, block_on, dead_letters, prunes_by_account, selection,
};
use crate::commands::terminal::confirm::ask_to_continue;
use crate::commands::{CommandResult, EnvVars, print_as, print_notice};
use crate::config::PipelineConfig;

/// Runs `walrelay prune`.
pub(crate) fn prune(args: &PruneArgs, env: EnvVars<'_>) -> CommandResult {
    let server = Server::load(&args.ask.change.config, env)?;
    let config = &server.config;
    let keep = args.keep.or_else(|| config.prune.as_ref()?.keep);
    let info = server.info.clone();
    let pruning = pruning(config, info, keep, dead_letters(config, || None)?)?;
    if args.accept {
        return accept(args, &server, &pruning);
    }
    let (report, problems) = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let planned = Report::planned(&pruning, &mut session).await?;
        if args.ask.change.dry_run {
            return Ok((planned, Vec::new()));
        }
        if planned.removes() && !args.ask.yes {
            print_notice(planned.to_string().trim_end());
            let refused = Failure::new("prune-not-agreed", Exit::Usage, "nothing was deleted");
            ask_to_continue(refused.remedy("look with --dry-run, or say --yes"))?;
        }
        let begun = Instant::now();
        let mut done = Report::default();
        let mut rows = 0;
        let changed = |change| done.add(&change);
        let problems = pruning.run(&mut session, changed, |deleted| rows += deleted);
        let problems = problems.await;
        done.deleted = Some(rows);
        done.seconds = begun.elapsed().as_secs_f64();
        session.close().await;
        Ok::<_, Failure>((done, problems))
    }))??;
    // The changes are printed, also if rows stay.
    print_as(args.output, &report, &report)?;
    no_problems(problems)
}

/// Returns the failures of a command that leaves rows.
fn no_problems(problems: Vec<PruneError>) -> CommandResult {
    let mut failures: Vec<Failure> = problems.into_iter().flat_map(failures).collect();
    // The exit code is that of the first.
    failures.sort_by_key(|failure| failure.exit.code());
    match &*failures {
        [] => Ok(()),
        _ => Err(failures),
    }
}

/// Makes old rows that are not accounted as sent count as sent: `prune --accept`.
fn accept(args: &PruneArgs, server: &Server, pruning: &Pruning) -> CommandResult {
    let (accepted, problems) = block_on(Box::pin(async {
        let mut session = server.connect().await?;
        let differences = pruning.differences(&mut session).await.map_err(failed)?;
        for difference in &differences.tables {
            print_notice(&difference.to_string());
        }
        if differences.tables.is_empty() || args.ask.change.dry_run {
            return Ok((0, differences.problems));
        }
        if !args.ask.yes {
            let refused = Failure::new("prune-not-agreed", Exit::Usage, "nothing was changed");
            ask_to_continue(refused.remedy("look with --dry-run, or say --yes"))?;
        }
        let accepted = pruning.accept(&mut session, &differences.tables).await;
        let accepted = accepted.map_err(failed)?;
        session.close().await;
        Ok::<_, Failure>((accepted, differences.problems))
    }))??;
    let text = format!("{accepted} rows count as sent from now on\n");
    print_as(args.output, &text, &json!({ "accepted": accepted }))?;
    no_problems(problems)
}

/// The changes that a command makes, or has made.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Rows that are old enough. `None`: rows were deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_enough: Option<u64>,
    /// Rows that were deleted. `None`: nothing was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<u64>,
    created_partitions: Vec<String>,
    dropped_partitions: Vec<String>,
    kept_partitions: Vec<String>,
    /// Planned only: why no row of a table is deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept_tables: Vec<String>,
    seconds: f64,
}

impl Report {
    /// Counts what would be changed. What is found now is not recorded: it changes nothing.
    async fn planned(pruning: &Pruning, session: &mut Session) -> Result<Self, Failure> {
        let plan = pruning.plan(session).await.map_err(failed)?;
        let mut planned = Self {
            old_enough: Some(plan.rows),
            kept_tables: plan
                .problems
                .iter()
                .map(|why| Chain(why).to_string())
                .collect(),
            ..Self::default()
        };
        for change in &plan.changes {
            planned.add(change);
        }
        Ok(planned)
    }

    fn add(&mut self, change: &Change) {
        let (partitions, part) = match change {
            Change::Created(part) => (&mut self.created_partitions, part),
            Change::Dropped(part) => (&mut self.dropped_partitions, part),
            Change::Kept(part) => (&mut self.kept_partitions, part),
        };
        partitions.push(part.to_string());
    }

    /// Returns true if rows or partitions go.
    fn removes(&self) -> bool {
        self.old_enough.is_some_and(|rows| rows > 0) || !self.dropped_partitions.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plan = self.old_enough.is_some();
        for part in &self.created_partitions {
            if is_plan {
                writeln!(f, "partition {part} is created")?;
            } else {
                writeln!(f, "created partition {part}")?;
            }
        }
        for part in &self.dropped_partitions {
            if is_plan {
                writeln!(f, "partition {part} is dropped, if its rows are sent")?;
            } else {
                writeln!(f, "dropped partition {part}")?;
            }
        }
        for part in &self.kept_partitions {
            writeln!(f, "partition {part} stays: not all its rows count as sent")?;
        }
        for kept in &self.kept_tables {
            writeln!(f, "{kept}")?;
        }
        if let Some(rows) = self.old_enough {
            let what = "rows are old enough to be deleted, if they are sent";
            writeln!(f, "{rows} {what}")?;
        }
        if let Some(rows) = self.deleted {
            writeln!(f, "deleted {rows} rows in {:.1} s", self.seconds)?;
        }
        Ok(())
    }
}

/// Returns the pruning that `[prune]` configures, of rows older than `keep`.
pub(crate) fn pruning(
    config: &PipelineConfig,
    info: ConnInfo,
    keep: Option<Duration>,
    dead_letters: DeadLetters,
) -> Result<Pruning, Failure> {
    let Some(prune) = &config.prune else {
        let what =
            "rows from before the slot would be deleted as well, which this relay never sent";
        return Err(Failure::new("prune-before-slot", Exit::Config, what).remedy(
            "set before_slot = true in [prune] if they may go, or snapshot in [source] to send them",
        ));
    };
    let keep = keep.ok_or_else(|| {
        Failure::new("prune-keep", Exit::Usage, "nothing says which rows stay")
            .remedy("say --keep 7d, or set keep in [prune]")
    })?;
    let evidence = if prunes_by_account(config) {
        let relay_slot = std::iter::once(&config.source.slot);
        Evidence::Account {
            slots: relay_slot.chain(&prune.slots).cloned().collect(),
            columns: account_columns(config),
            dead_letters: Box::new(dead_letters),
            store: config.poison.topic.clone(),
        }
    } else {
        Evidence::Marks {
            selection: Selection {
                unsent: true,
                ..selection(config)
            },
            slot: config.source.slot.clone(),
            dead_letters: Box::new(dead_letters),
        }
    };
    Ok(Pruning {
        info,
        evidence,
        waited: RefCell::default(),
        not_confirmed: RefCell::default(),
        tables: config.source.tables.clone(),
        column: prune.column.clone(),
        keep,
        batch: prune.batch,
        pause: prune.pause,
        lock_timeout: prune.lock_timeout,
        partition: prune.partition,
        ahead: prune.ahead,
    })
}

/// Makes the failure of a command that finds no account of sent rows.
fn no_account(why: NoAccount) -> Failure {
    let remedy = no_account_remedy(&why);
    if let NoAccount::Table(_) | NoAccount::Key(_) = why {
        return Failure::new("prune-no-account", Exit::Config, why.to_string()).remedy(remedy);
    }
    let what = "which rows were sent cannot be known: nothing is deleted";
    Failure::new("prune-no-account", Exit::Config, what)
        .caused_by(why)
        .remedy(remedy)
}

/// Returns the remedy for dead letters that the configured store does not have.
pub(crate) const MISSING_DEAD_LETTERS: &str = "these rows may be the only copies of their events: set [poison] topic back, \
     and redrive or drop the dead letters there. If they are gone, send the rows (walrelay resend), or decide that they \
     may go; then walrelay prune --accept counts the rows of these times as sent";

/// The remedy for rows that are not those that were accounted as sent.
const OTHER_ROWS: &str = "more rows: the slot did not carry them, or they are from before it. Send them (walrelay resend), or \
     decide that they may go. Fewer: something else deleted rows. Then walrelay prune --accept counts the rows of these \
     times as sent, also those of missing dead letters";

/// Returns the remedy for dead letters that another relay has not settled.
const UNSETTLED_DEAD_LETTERS: &str = "redrive or drop these dead letters with the configuration of their relay; \
     it settles them when it prunes: [prune] keep, or walrelay prune";

/// Returns the remedy for stored keys of dead letters by which no row can be found.
pub(crate) const LOST_KEYS: &str = "rename the columns back, or redrive or drop these dead letters (walrelay dlq list): \
     then walrelay prune deletes by the marks again. If the topic does not have them any more, delete their keys from \
     walrelay_state.dead";

/// Returns the remedy for stored keys of dead letters in another store than the configured one.
pub(crate) fn elsewhere_remedy(keys: &KeysElsewhere) -> String {
    format!(
        "configure that sink and topic, for example with --set, and redrive or drop these dead letters (walrelay dlq). Then \
         walrelay prune with it deletes the keys of dropped ones. Only walrelay run with it marks the rows of redriven ones: \
         let it run until walrelay prune names none. If the dead letters are gone, see whether these rows were sent, and \
         send those that were not: walrelay resend. Then delete their keys: {}",
        keys.delete_sql()
    )
}

/// Returns what to do about a missing account.
pub(crate) fn no_account_remedy(why: &NoAccount) -> &'static str {
    match why {
        NoAccount::Table(_) => "name the table in [source] tables as it is named now",
        NoAccount::Key(_) => {
            "add a primary key to the table, or name a unique column as id in [router.route]: from then on rows are accounted. \
             Those from before are accounted by walrelay prune --accept, if they may go"
        }
        NoAccount::Slot(_) => {
            "start walrelay run of this version with [prune] keep or before_slot in its configuration: it accounts the rows that \
             it sends. Rows from before that are accounted by walrelay prune --accept, if they may go"
        }
        NoAccount::Missing => {
            "walrelay init --role ROLE, as a user who may, creates it for the relay's role"
        }
    }
}

/// Makes the failures of a command that leaves rows which are not accounted as sent: one for each kind of them.
fn unaccounted(found: &[Unaccounted]) -> Vec<Failure> {
    let is_partial = found.iter().any(|one| !one.unpublished_key.is_empty());
    let publish_key = if is_partial {
        ". Let the publication carry all columns of the primary key first (ALTER PUBLICATION … SET TABLE)"
    } else {
        ""
    };
    let kinds = [
        (
            DifferenceKind::OtherRows,
            Failure::new("prune-unaccounted", Exit::Data, "").remedy(OTHER_ROWS),
        ),
        (
            DifferenceKind::MissingDeadLetters,
            Failure::new("prune-dead-letters-missing", Exit::Data, "").remedy(MISSING_DEAD_LETTERS),
        ),
        (
            DifferenceKind::UnsettledDeadLetters,
            Failure::new("prune-dead-letters", Exit::Data, "").remedy(UNSETTLED_DEAD_LETTERS),
        ),
    ];
    let failures = kinds.into_iter().filter_map(|(kind, failure)| {
        let what: Vec<String> = found.iter().filter_map(|one| one.text_of(kind)).collect();
        let remedy = failure.remedy.map(|remedy| remedy + publish_key);
        let what = what.join("; ");
        (!what.is_empty()).then_some(Failure {
            what,
            remedy,
            ..failure
        })
    });
    failures.collect()
}

/// Makes the failures of a command from the reason why rows stay.
fn failures(error: PruneError) -> Vec<Failure> {
    match &error {
        PruneError::Unaccounted(found) => unaccounted(found),
        _ => vec![failed(error)],
    }
}

/// Makes the failure of a command from the reason why rows stay; the first of several.
pub(crate) fn failed(error: PruneError) -> Failure {
    let what = error.to_string();
    match error {
        PruneError::Sql(error) | PruneError::Confirmed(ConfirmedError::Sql(error)) => {
            error.into()
        }
        PruneError::Column(_) => Failure::new("prune-column", Exit::Config, what)
            .remedy("name it as column in [prune]"),
        PruneError::Locked(_) => Failure::new("prune-locked", Exit::Temporary, what).remedy(
            "end the transactions that use it, or try again. The other partitions are dropped at the next round, too",
        ),
        PruneError::Owner(_) => Failure::new("prune-owner", Exit::Config, what).remedy(
            "GRANT the role that owns the table to the relay's role, and let that owner CREATE in the schema",
        ),
        PruneError::DefaultPartition(_) => {
            Failure::new("prune-default-partition", Exit::Config, what).remedy(
                "create that table by hand, move the rows into it in one transaction, and ATTACH it: rows that are \
                 inserted into a table of its own are not sent again",
            )
        }
        PruneError::Partition(_, error) => {
            let failure = Failure::new("prune-partition", Exit::Config, what).caused_by(error);
            failure.remedy("set partition in [prune] to the time that the partitions have, or leave it out")
        }
        PruneError::Postgres(error) => error.into(),
        PruneError::Unmarked { .. } => Failure::new("prune-unmarked", Exit::Data, what).remedy(
            "see whether these rows were sent, and send those that were not: walrelay resend. Then mark them, or drop \
             the partition by hand",
        ),
        PruneError::Timeless { .. } => Failure::new("prune-unaccounted", Exit::Data, what).remedy(
            "see whether these rows were sent, and send those that were not: walrelay resend. Then drop the partition by \
             hand",
        ),
        PruneError::Uncarried { .. } => Failure::new("prune-unaccounted", Exit::Data, what).remedy(
            "the publication's row filter leaves these rows out, so no relay sends them. Delete them, if they may go, or \
             keep them in another table: then the relay drops the partition",
        ),
        PruneError::Uncompared { .. } => Failure::new("prune-unaccounted", Exit::Data, what)
            .remedy("prune again, when nothing else changes these rows"),
        PruneError::Unaccounted(found) => {
            let first = unaccounted(&found).into_iter().next();
            first.unwrap_or_else(|| {
                Failure::new("prune-unaccounted", Exit::Data, what).remedy(OTHER_ROWS)
            })
        }
        PruneError::Statement { source, .. } => {
            let failure = Failure::from(source);
            Failure { what: [what, failure.what].join(": "), ..failure }
        }
        PruneError::Missing(_) => Failure::new("prune-table", Exit::Config, what)
            .remedy("name the table in [source] tables as it is named now, or take it out of them"),
        PruneError::NoAccount(why) => no_account(why),
        PruneError::KeysElsewhere(keys) => {
            Failure::new("prune-dead-letters", Exit::Data, what).remedy(elsewhere_remedy(&keys))
        }
        PruneError::LostKeys(_) => {
            Failure::new("prune-dead-letters", Exit::Data, what).remedy(LOST_KEYS)
        }
        PruneError::DeadLetters { .. } => Failure::new("prune-dead-letters", Exit::Data, what)
            .remedy(
                "these rows may be the only copies: see walrelay dlq list, redrive or drop the dead letters, and prune \
                 again. If the topic does not have them any more, delete their keys from walrelay_state.dead (mark_dead)",
            ),
        PruneError::Confirmed(ConfirmedError::DeadLetters(why)) => {
            let what = "which rows have an open dead letter is not known: those that may have one stay";
            Failure::new("prune-dead-letters", Exit::Temporary, what)
                .caused_by(why)
                .remedy(
                    "see to the cause: the sink, the right to READ the topic of dead letters, or \
                     the dead letters (walrelay dlq list)",
                )
        }
        PruneError::Confirmed(_) => {
            Failure::new("prune-not-confirmed", Exit::Temporary, what).remedy(
                "see that a relay runs for each of these slots: walrelay status. Nothing that is not confirmed is \
                 deleted",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_postgres_source::Difference;
    use walrelay_relay::TableName;

    use super::*;

    #[test]
    fn each_kind_of_rows_that_stay_is_a_failure_with_its_own_rows() {
        let found = Unaccounted {
            table: TableName::new("public", "outbox"),
            buckets: vec![Difference {
                present: 2,
                accounted: 1,
                rows_differ: true,
                unsettled: 3,
                ..Difference::default()
            }],
            stores: Vec::new(),
            read: "dlq".to_owned(),
            unpublished_key: Vec::new(),
        };
        let failures = failures(PruneError::Unaccounted(vec![found]));
        let shown: Vec<_> = failures
            .iter()
            .map(|one| (one.id, one.what.as_str()))
            .collect();
        let times = "in the ten minutes from 1970-01-01 00:00Z";
        let rows = format!(
            "rows of public.outbox stay: it has 1 rows more than were accounted as sent, {times}"
        );
        let dead = format!(
            "rows of public.outbox stay: 3 of its rows became dead letters of other relays, which have not settled them, \
             {times}"
        );
        assert_eq!(
            shown,
            [
                ("prune-unaccounted", &*rows),
                ("prune-dead-letters", &*dead)
            ]
        );
    }
}
