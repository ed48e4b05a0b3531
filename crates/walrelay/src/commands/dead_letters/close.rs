//! `walrelay dlq redrive` and `dlq drop`: close dead letters.

use std::ops::ControlFlow;
use std::time::Duration;

use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_sink_kind::dead_letters::{
    Action, DeadLetters, DlqRecord, DlqRecordId, Listed, NotRedriven, OutOfOrder, Outcome,
    ReplayOptions, ReplaySummary, Step,
};

use super::render::{Columns, Destination, DlqTable, Fields, json_line, json_line_to};
use super::{
    CommandResult, DlqTopic, EnvVars, print_bytes, print_foreign, print_notice, print_part,
    show_each,
};
use crate::cli::{CloseArgs, DropArgs, Output, RedriveArgs};
use crate::commands::print_line;
use crate::commands::terminal::confirm::ask_to_continue;

/// Timeout of one acknowledgement. librdkafka takes half a minute to report that a topic does not
/// exist.
const ACK_TIMEOUT: Duration = Duration::from_secs(90);
/// Dead letters that are reported as failures; further ones are counted.
const NAMED: usize = 20;

/// A run of `redrive` or `drop`.
struct CloseRun<'a> {
    args: &'a CloseArgs,
    options: ReplayOptions,
    outcome: Outcome,
}

/// Runs `walrelay dlq redrive`.
pub(super) fn redrive(args: &RedriveArgs, env: EnvVars<'_>) -> CommandResult {
    let action = Action::Redrive {
        topic: args.topic_override.clone(),
        follow: !args.without_parked,
    };
    CloseRun::new(&args.close, action, Outcome::Redriven)?.run(env, |dead_letters| {
        let overtaking = dead_letters.out_of_order();
        if args.out_of_order || overtaking.is_empty() {
            Ok(())
        } else {
            Err(out_of_order(&overtaking))
        }
    })
}

/// Runs `walrelay dlq drop`.
pub(super) fn drop(args: &DropArgs, env: EnvVars<'_>) -> CommandResult {
    // A dropped dead letter is not sent, so it overtakes none.
    CloseRun::new(&args.close, Action::Drop, Outcome::Dropped)?.run(env, |_| Ok(()))
}

impl<'a> CloseRun<'a> {
    fn new(args: &'a CloseArgs, action: Action, outcome: Outcome) -> Result<Self, Failure> {
        if args.filter.is_empty() && !args.all {
            return Err(Failure::new(
                "dlq-no-filter",
                Exit::Usage,
                "this would concern all dead letters",
            )
            .remedy("give a filter, such as --class or --id, or --all if all are meant"));
        }
        Ok(Self {
            args,
            options: ReplayOptions {
                action,
                limit: args.filter.limit.map(|limit| limit as usize),
                patience: ACK_TIMEOUT,
            },
            outcome,
        })
    }

    fn run(
        &self,
        env: EnvVars<'_>,
        check: impl FnOnce(&dyn DeadLetters) -> Result<(), Failure>,
    ) -> CommandResult {
        let topic = DlqTopic::new(&self.args.dlq, env)?;
        let filter = topic.filter(&self.args.filter);
        let matches = |record: &DlqRecord| filter.matches(record);
        let by_id = !self.args.filter.id.is_empty();
        let Some(mut dead_letters) = topic.open()? else {
            return if by_id {
                Err(vec![none_found()])
            } else {
                Ok(())
            };
        };
        dead_letters.read(&matches)?;
        print_foreign(&*dead_letters);
        let plan = dead_letters.plan(&self.options);
        if plan.is_empty() && by_id {
            return Err(vec![none_found()]);
        }
        check(&*dead_letters)?;
        if self.args.dry_run {
            return self.print_plan(&mut *dead_letters, &plan);
        }
        if !self.args.yes && !plan.is_empty() {
            self.ask(plan.len())?;
        }
        let mut written = Ok(());
        let mut failures = Vec::new();
        let mut holds_back = false;
        let carried = dead_letters.carry_out(&self.options, &matches, &mut |step| match step {
            Step::Done(record) => {
                if written.is_ok() {
                    written = self.print_closed(record);
                }
            }
            Step::Failed(id, record, why) => {
                if failures.len() < NAMED {
                    failures.push(not_redriven(id, record, why));
                }
            }
            Step::HeldBack {
                dead_letter,
                behind,
            } => {
                if !std::mem::replace(&mut holds_back, true) {
                    print_notice(&format!("{dead_letter} waits: {behind} stays open"));
                }
            }
        });
        match carried {
            Ok(summary) => self.print_summary(summary),
            // Inserted as the first one, as that gives the exit code.
            Err(error) => failures.insert(0, error),
        }
        // Appended as the last one: the dead letters are closed even if that could not be printed.
        failures.extend(written.err());
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures)
        }
    }

    /// Asks whether so many dead letters are to be closed.
    fn ask(&self, number: usize) -> Result<(), Failure> {
        print_notice(&match &self.options.action {
            Action::Drop => format!(
                "{number} dead letters are to be dropped: their events are not sent, now or later."
            ),
            Action::Redrive { .. } => format!("{number} dead letters are to be sent and closed."),
        });
        let refused = Failure::new("dlq-not-confirmed", Exit::Usage, "nothing was changed");
        ask_to_continue(refused.remedy("see which they are with --dry-run, then say --yes"))
    }

    fn print_plan(&self, dead_letters: &mut dyn DeadLetters, plan: &[Listed]) -> CommandResult {
        let destination = match &self.options.action {
            Action::Redrive { topic, .. } => Some(
                topic
                    .as_deref()
                    .map_or(Destination::Own, Destination::Topic),
            ),
            Action::Drop => None,
        };
        let mut table = DlqTable::new(Columns {
            destination,
            ..Columns::default()
        });
        show_each(dead_letters, plan, |listed, record| {
            match self.args.output {
                Output::Table => {
                    table.add(listed, record);
                    Ok(ControlFlow::Continue(()))
                }
                Output::Json => print_part(&json_line_to(
                    "open",
                    record,
                    Fields::default(),
                    destination,
                )),
            }
        })?;
        if self.args.output == Output::Table && !plan.is_empty() {
            table.print()?;
        }
        print_notice(&format!(
            "{} dead letters would be {}",
            plan.len(),
            self.outcome
        ));
        Ok(())
    }

    fn print_closed(&self, record: &DlqRecord) -> Result<(), Failure> {
        match self.args.output {
            Output::Table => print_line(&format!("{} {}", self.outcome, record.id)),
            Output::Json => print_bytes(&json_line(self.outcome.name(), record, Fields::default())),
        }
    }

    fn print_summary(&self, summary: ReplaySummary) {
        let mut parts = vec![format!("{} dead letters {}", summary.done, self.outcome)];
        if summary.failed > 0 {
            parts.push(format!("{} failed", summary.failed));
        }
        if summary.held_back > 0 {
            parts.push(format!("{} wait behind them", summary.held_back));
        }
        print_notice(&parts.join(", "));
    }
}

fn not_redriven(id: &DlqRecordId, record: Option<&DlqRecord>, why: NotRedriven) -> Failure {
    let what = format!("dead letter {id} was not redriven");
    let failure = match &why {
        NotRedriven::Omitted { .. } => Failure::new("dlq-value-omitted", Exit::Data, what)
            .remedy(insert_anew(id, record, ", in parts that fit")),
        NotRedriven::Inexact => {
            Failure::new("dlq-inexact", Exit::Data, what).remedy(insert_anew(id, record, ""))
        }
        NotRedriven::NoTopic => Failure::new("dlq-no-topic", Exit::Data, what)
            .remedy("say where it is to go with --topic-override, or drop it"),
        NotRedriven::Gone => Failure::new("dlq-gone", Exit::Data, what)
            .remedy("set retention.ms=-1 on the topic of dead letters: a removed one is lost"),
        _ => Failure::new("dlq-refused", Exit::Data, what).remedy(
            "mend the cause and redrive it again, or send it elsewhere with --topic-override",
        ),
    };
    failure.caused_by(why)
}

/// Returns the remedy for a dead letter whose event it does not have. `how`: how the event is inserted.
fn insert_anew(id: &DlqRecordId, record: Option<&DlqRecord>, how: &str) -> String {
    let event = record.and_then(|record| record.event_id.as_deref());
    let event = event.map_or_else(
        || "the event (its id is not known)".to_owned(),
        |id| format!("event {}", String::from_utf8_lossy(id)),
    );
    let xid = record.and_then(|record| record.xid);
    let xid = xid.map_or_else(String::new, |xid| format!("transaction {xid}, "));
    format!(
        "insert {event} into the outbox again{how} ({xid}commit at LSN {}), then close the dead \
         letter: walrelay dlq drop --slot {} --id '{}' --yes",
        Lsn::new(id.id.lsn),
        id.slot,
        id.id
    )
}

fn out_of_order(overtaking: &[OutOfOrder]) -> Failure {
    let line = |of: &OutOfOrder| format!("\n  {} is behind {}", of.dead_letter, of.behind);
    let first: Vec<String> = overtaking.iter().take(5).map(line).collect();
    let what = format!(
        "{} selected dead letters would overtake earlier ones of the same key{}",
        overtaking.len(),
        first.concat()
    );
    Failure::new("dlq-out-of-order", Exit::Usage, what).remedy(
        "select the earlier ones too (the same --key does), drop them first, or give up the order \
         with --out-of-order",
    )
}

fn none_found() -> Failure {
    Failure::new(
        "dlq-letter",
        Exit::Usage,
        "there is no such open dead letter",
    )
    .remedy("`walrelay dlq list` lists those of the configured slot, --resolved also closed ones")
}
