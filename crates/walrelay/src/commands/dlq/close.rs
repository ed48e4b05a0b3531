use std::io::{self, Write};
use std::time::Duration;

use walrelay_kafka_sink::dlq::{
    Action, DlqRecord, DlqRecordId, DlqReplayer, Listed, NotRedriven, OutOfOrder, Outcome,
    ReplayOptions, ReplaySummary, Step,
};

use super::filter::Filter;
use super::render::{Columns, Fields, Table, line};
use super::{DlqTopic, Ended, Env, note, note_foreign, output, show_each};
use crate::cli::{CloseArgs, DropArgs, Exit, Failure, Output, RedriveArgs};
use crate::failures;

/// For one acknowledgement. That there is no such topic takes librdkafka half a minute to believe.
const PATIENCE: Duration = Duration::from_secs(90);
/// Dead letters that are named; more are counted.
const NAMED: usize = 20;

/// What is to be done with which dead letters.
struct Job<'a> {
    args: &'a CloseArgs,
    options: ReplayOptions,
    outcome: Outcome,
}

/// `walrelay dlq redrive`.
pub(super) fn redrive(args: &RedriveArgs, env: Env<'_>) -> Ended {
    let action = Action::Redrive {
        topic: args.topic_override.clone(),
        follow: !args.without_parked,
    };
    Job::new(&args.close, action, Outcome::Redriven)?.run(env, |replayer| {
        let broken = replayer.out_of_order();
        if args.out_of_order || broken.is_empty() {
            Ok(())
        } else {
            Err(out_of_order(&broken))
        }
    })
}

/// `walrelay dlq drop`.
pub(super) fn drop(args: &DropArgs, env: Env<'_>) -> Ended {
    let job = Job::new(&args.close, Action::Drop, Outcome::Dropped)?;
    if !args.yes && !args.close.dry_run {
        let failure = Failure::new(
            "dlq-not-confirmed",
            Exit::Usage,
            "the events of dropped dead letters are not sent, now or later",
        )
        .remedy("see which they are with --dry-run, then say --yes");
        return Err(vec![failure]);
    }
    // What is not sent is in nobody's way.
    job.run(env, |_| Ok(()))
}

impl<'a> Job<'a> {
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
                patience: PATIENCE,
            },
            outcome,
        })
    }

    fn run(&self, env: Env<'_>, check: impl FnOnce(&DlqReplayer) -> Result<(), Failure>) -> Ended {
        let topic = DlqTopic::new(&self.args.dlq, env)?;
        let filter = Filter::new(&self.args.filter, topic.slot.as_deref());
        let fits = |record: &DlqRecord| filter.fits(record);
        let by_id = !self.args.filter.id.is_empty();
        let Some(mut replayer) = topic.open()? else {
            return if by_id { Err(vec![nothing()]) } else { Ok(()) };
        };
        replayer
            .read(fits)
            .map_err(|error| failures::dead_letters(&error))?;
        note_foreign(replayer.index());
        let plan = replayer.plan(&self.options);
        if plan.is_empty() && by_id {
            return Err(vec![nothing()]);
        }
        check(&replayer)?;
        if self.args.dry_run {
            return self.pretend(&mut replayer, &plan);
        }
        let mut written = Ok(());
        let mut failed = Failed::default();
        let carried = replayer.carry_out(&self.options, fits, |step| match step {
            Step::Done(record) => {
                if written.is_ok() {
                    written = self.say(record);
                }
            }
            Step::Failed(name, record, why) => failed.add(name, record, why),
            Step::HeldBack {
                dead_letter,
                behind,
            } => {
                if failed.held_back == 0 {
                    note(&format!("{dead_letter} waits: {behind} stays open"));
                }
                failed.held_back += 1;
            }
        });
        let mut failures = failed.failures;
        match carried {
            Ok(summary) => self.sum_up(summary, failed.count),
            // First: its exit code counts.
            Err(error) => failures.insert(0, failures::dlq_replay(error)),
        }
        // Last: the dead letters are closed, whoever reads of it or not.
        failures.extend(written.err().map(output));
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures)
        }
    }

    fn pretend(&self, replayer: &mut DlqReplayer, plan: &[Listed]) -> Ended {
        let columns = Columns::default();
        let mut table = Table::new(columns);
        show_each(replayer, plan, |listed, record| match self.args.output {
            Output::Table => {
                table.add(columns, listed, record);
                Ok(())
            }
            Output::Json => io::stdout().write_all(&line("open", record, Fields::default())),
        })?;
        if self.args.output == Output::Table && !plan.is_empty() {
            table.write(&mut io::stdout().lock()).map_err(output)?;
        }
        note(&format!(
            "{} dead letters would be {}",
            plan.len(),
            self.outcome
        ));
        Ok(())
    }

    fn say(&self, record: &DlqRecord) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.args.output {
            Output::Table => writeln!(out, "{} {}", self.outcome, record.id),
            Output::Json => out.write_all(&line(self.outcome.name(), record, Fields::default())),
        }
    }

    fn sum_up(&self, summary: ReplaySummary, failed: usize) {
        let mut parts = vec![format!("{} dead letters {}", summary.done, self.outcome)];
        if failed > 0 {
            parts.push(format!("{failed} failed"));
        }
        if summary.held_back > 0 {
            parts.push(format!("{} wait behind them", summary.held_back));
        }
        note(&parts.join(", "));
    }
}

/// Dead letters that stay open, as failures: the first ones.
#[derive(Default)]
struct Failed {
    failures: Vec<Failure>,
    count: usize,
    held_back: usize,
}

impl Failed {
    fn add(&mut self, name: &DlqRecordId, record: Option<&DlqRecord>, why: NotRedriven) {
        self.count += 1;
        if self.failures.len() < NAMED {
            self.failures.push(not_redriven(name, record, why));
        }
    }
}

fn not_redriven(name: &DlqRecordId, record: Option<&DlqRecord>, why: NotRedriven) -> Failure {
    let what = format!("dead letter {name} was not redriven");
    match why {
        NotRedriven::Omitted { .. } => {
            let event = record
                .and_then(|record| record.event_id.as_deref())
                .map_or_else(
                    || "the event (its id is not known)".to_owned(),
                    |id| format!("event {}", String::from_utf8_lossy(id)),
                );
            let xid = record
                .and_then(|record| record.xid)
                .map_or_else(String::new, |xid| format!("transaction {xid}, "));
            Failure::new("dlq-value-omitted", Exit::Data, what)
                .caused_by(why)
                .remedy(format!(
                    "insert {event} into the outbox anew, in parts that fit ({xid}commit at LSN {}), \
                     then close the dead letter: walrelay dlq drop --slot {} --id '{}' --yes",
                    name.id.to_string().split(' ').next().unwrap_or_default(),
                    name.slot,
                    name.id
                ))
        }
        NotRedriven::NoTopic => Failure::new("dlq-no-topic", Exit::Data, what)
            .caused_by(why)
            .remedy("say where it is to go with --topic-override, or drop it"),
        NotRedriven::Gone => Failure::new("dlq-gone", Exit::Data, what)
            .caused_by(why)
            .remedy("set retention.ms=-1 on the topic of dead letters: what it removes is lost"),
        why => Failure::new("dlq-refused", Exit::Data, what)
            .caused_by(why)
            .remedy(
                "mend the cause and redrive it again, or send it elsewhere with --topic-override",
            ),
    }
}

fn out_of_order(broken: &[OutOfOrder]) -> Failure {
    let first = broken.iter().take(5);
    let first: Vec<String> = first
        .map(
            |OutOfOrder {
                 dead_letter,
                 behind,
             }| format!("\n  {dead_letter} is behind {behind}"),
        )
        .collect();
    let what = format!(
        "{} selected dead letters would overtake earlier ones of the same key{}",
        broken.len(),
        first.concat()
    );
    Failure::new("dlq-out-of-order", Exit::Usage, what).remedy(
        "select the earlier ones too (the same --key does), drop them first, or give up the order \
         with --out-of-order",
    )
}

fn nothing() -> Failure {
    Failure::new(
        "dlq-letter",
        Exit::Usage,
        "there is no such open dead letter",
    )
    .remedy("`walrelay dlq list` lists those of the configured slot, --resolved also closed ones")
}
