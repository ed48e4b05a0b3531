//! Each command that changes what is known of rows or slots is cut at each of its statements: the
//! process is killed when Postgres has executed the n-th one, or has not got it. Then the next
//! obvious command runs. No row may be deleted or marked whose event did not arrive, and a relay
//! must come to stream as its errors advise.

mod case;
mod statements;

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use fastrand::Rng;
use walrelay_testkit::{HttpReceiver, Program, Reaction, eventually, lock, rng_of};
use walrelay_throwaway::Postgres;

use self::case::{Case, Evidence};
use self::statements::{Cut, StatementProxy};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::rig::PATIENCE;
use crate::run::words;

/// What a relay logs that streams.
const STREAMING: &str = "\"streaming\"";
/// Cuts at a time.
const LANES: usize = 3;

/// A command that is cut.
struct Stage {
    /// The command line. SLOT is the name of the slot.
    line: &'static str,
    evidence: Evidence,
    /// What is there before.
    before: Before,
    /// The command throws events away that the slot has.
    gives_up: bool,
}

/// The state in which a command begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Rows, and nothing of walrelay.
    Rows,
    /// A relay has sent rows, and ended. There are more rows.
    Relayed,
    /// The same, and the slot is gone.
    SlotGone,
    /// The same, and something else has moved the slot past the other rows.
    SlotMoved,
    /// A relay runs beside the command.
    Running,
}

/// What is done after a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Run,
    Init,
    Again,
    AcceptGap,
    SlotBySql,
}

const NEXT: [Next; 5] = [
    Next::Run,
    Next::Init,
    Next::Again,
    Next::AcceptGap,
    Next::SlotBySql,
];

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?}, {:?})", self.line, self.evidence, self.before)
    }
}

const fn stage(line: &'static str, evidence: Evidence, before: Before) -> Stage {
    Stage {
        line,
        evidence,
        before,
        gives_up: false,
    }
}

const fn giving_up(line: &'static str, evidence: Evidence, before: Before) -> Stage {
    Stage {
        line,
        evidence,
        before,
        gives_up: true,
    }
}

use Before::{Relayed, Rows, Running, SlotGone, SlotMoved};
use Evidence::{Account, Marks};

const STAGES: [Stage; 17] = [
    stage("init", Account, Rows),
    stage("init", Marks, Rows),
    stage("run", Account, Rows),
    stage("run", Marks, Rows),
    stage("run", Account, Relayed),
    stage("run", Marks, Relayed),
    stage("run --accept-gap", Account, SlotGone),
    stage("run --accept-gap", Marks, SlotGone),
    giving_up("run --accept-gap", Account, SlotMoved),
    giving_up("run --accept-gap", Marks, SlotMoved),
    stage("cutover switch --yes", Marks, Rows),
    stage("cutover rollback --yes", Marks, Relayed),
    stage("prune --keep 1h --yes", Account, Running),
    stage("prune --keep 1h --yes", Marks, Running),
    giving_up("slots drop SLOT --yes", Account, Relayed),
    giving_up("slots drop SLOT --yes", Marks, Relayed),
    giving_up("slots advance SLOT --to now --yes", Account, Relayed),
];

/// The results of cuts.
#[derive(Default)]
struct Tally {
    cuts: usize,
    /// Rows that were inserted.
    rows: usize,
    /// What each failed cut found.
    wrong: Vec<String>,
}

/// Cuts at each statement, or at one of the first `some` of each stage, `rounds` times.
pub(crate) fn each_statement(ctx: &mut Context, rounds: u32, some: Option<u64>) -> Outcome {
    ctx.own_postgres(&[
        ("max_replication_slots", "60"),
        ("max_wal_senders", "60"),
        ("max_connections", "200"),
    ]);
    let receiver = HttpReceiver::start(false, None, |_, _| Reaction::Store(200));
    let tally = Mutex::<Tally>::default();
    for _ in 0..rounds {
        let seed = ctx.rng.u64(..);
        let left: Mutex<VecDeque<&Stage>> = Mutex::new(STAGES.iter().collect());
        thread::scope(|scope| {
            for _ in 0..LANES {
                scope.spawn(|| {
                    let next = || lock(&left).pop_front();
                    while let Some(stage) = next() {
                        sweep(ctx, &receiver, stage, (seed, some), &tally);
                    }
                });
            }
        });
    }
    let Tally { cuts, rows, wrong } = std::mem::take(&mut *lock(&tally));
    println!("  {cuts} cuts, {} wrong", wrong.len());
    Outcome {
        committed: rows,
        lost: wrong.len(),
        wrong,
        ..Outcome::default()
    }
}

/// Cuts a stage at each of its statements, or at a random one of the first.
fn sweep(
    ctx: &Context,
    receiver: &HttpReceiver,
    stage: &Stage,
    (seed, some): (u64, Option<u64>),
    tally: &Mutex<Tally>,
) {
    let name = stage.to_string();
    let numbers = match some {
        Some(most) => {
            let number = rng_of(seed, &name).u64(1..=most);
            number..=number
        }
        None => 1..=u64::MAX,
    };
    let (begun, mut statements) = (Instant::now(), 0);
    for number in numbers {
        let mut rng = rng_of(seed, &format!("{name} {number}"));
        let cut = cut_at(ctx, receiver, stage, number, &mut rng);
        let mut tally = lock(tally);
        match cut {
            Ok(None) => break,
            Ok(Some(rows)) => tally.rows += rows as usize,
            Err(wrong) => tally.wrong.push(wrong),
        }
        tally.cuts += 1;
        statements = number;
    }
    println!(
        "    {stage}: {statements} statements, {:.0} s",
        begun.elapsed().as_secs_f64()
    );
}

/// Cuts a stage at this statement. Returns the rows that were inserted; `None`: the command ends before.
fn cut_at(
    ctx: &Context,
    receiver: &HttpReceiver,
    stage: &Stage,
    number: u64,
    rng: &mut Rng,
) -> Result<Option<u32>, String> {
    let cut = if rng.bool() { Cut::Before } else { Cut::After };
    let next = NEXT[rng.usize(..NEXT.len())];
    let attempt = catch_unwind(AssertUnwindSafe(|| {
        let mut case = Case::new(&ctx.postgres, receiver, stage.evidence, &ctx.dir);
        let cut = attempt(&ctx.postgres, &mut case, stage, (number, cut), next);
        let rows = case.inserted();
        case.clean_up();
        cut.then_some(rows)
    }));
    attempt.map_err(|panic| {
        format!(
            "{stage}, cut {cut:?} statement {number}, then {next:?}: {}",
            words(&*panic)
        )
    })
}

/// Prepares the stage; returns the relay that runs beside it.
fn prepare(case: &mut Case<'_>, before: Before) -> Option<Program> {
    case.insert(3);
    if before == Rows {
        return None;
    }
    let relay = case.streams(false);
    if before == Running {
        case.insert(2);
        return Some(relay);
    }
    eventually(PATIENCE, || case.is_settled());
    relay.ends_well();
    case.insert(3);
    match before {
        SlotGone => case.sql("SELECT pg_drop_replication_slot('SLOT')"),
        SlotMoved => {
            case.sql("SELECT pg_replication_slot_advance('SLOT', pg_current_wal_flush_lsn())");
        }
        _ => {}
    }
    None
}

/// Returns whether the command was cut.
fn attempt(
    postgres: &Postgres,
    case: &mut Case<'_>,
    stage: &Stage,
    (number, cut): (u64, Cut),
    next: Next,
) -> bool {
    let beside = prepare(case, stage.before);
    let proxy = StatementProxy::start(postgres.port(), number, cut);
    let program = case.start_through(stage.line, &proxy);
    let is_run = stage.line.starts_with("run");
    let mut statement = None;
    eventually(PATIENCE, || {
        // Before the ends: a process that is cut does not end.
        statement = proxy.stopped();
        statement.is_some()
            || program.status().is_some()
            || (is_run
                && (case.is_settled() || (stage.gives_up && program.log().contains(STREAMING))))
    });
    case.note(stage.line, &program);
    program.kill();
    drop(proxy);
    if let Some(relay) = beside {
        relay.kill();
    }
    let Some(statement) = statement else {
        return false;
    };
    let _ = writeln!(case.logs, "--- cut at: {statement}");
    case.insert(2);
    let mut accept = false;
    case.gave_up |= stage.gives_up;
    match next {
        Next::Run => {}
        Next::Init => drop(case.run("init")),
        Next::Again if is_run => accept = stage.line.contains("accept"),
        Next::Again => drop(case.run(stage.line)),
        Next::AcceptGap => accept = true,
        Next::SlotBySql => {
            if !case.has_slot() {
                case.gave_up = true;
                case.sql("SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')");
            }
        }
    }
    case.gave_up |= accept;
    let relay = case.streams(accept);
    case.run("prune --keep 1h --yes");
    relay.ends_well();
    case.check(!case.gave_up);
    true
}
