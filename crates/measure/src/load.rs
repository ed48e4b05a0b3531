//! The load generator: a backlog as fast as possible, and rows on a fixed schedule.
//!
//! The schedule is an open loop: it depends neither on how long a commit takes nor on how fast a
//! row is relayed.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Rows that one statement of a backlog writes: a fifth of them in transactions of one row, the
/// rest in transactions of `ROWS_PER_TRANSACTION` rows. The mix per statement makes both halves
/// of a backlog alike.
pub const BLOCK_ROWS: u64 = 10_000;
const ROWS_PER_TRANSACTION: u64 = 100;

/// Returns the statements that write a backlog, each with the number of the last row it writes.
/// `insert` is `INSERT INTO … SELECT …`, or another statement of PL/pgSQL, over a row's number `n`, without the
/// FROM clause.
pub fn backlog(insert: &str, numbers: Range<u64>) -> impl Iterator<Item = (u64, String)> {
    let end = numbers.end;
    numbers.step_by(BLOCK_ROWS as usize).map(move |from| {
        let to = end.min(from + BLOCK_ROWS);
        (to, block(insert, from, to))
    })
}

/// Returns an anonymous block that writes the rows after `from`, up to `end`.
fn block(insert: &str, from: u64, end: u64) -> String {
    let singles = from + (end - from) / 5;
    format!(
        "DO $load$ DECLARE at bigint := {from}; BEGIN \
         WHILE at < {singles} LOOP \
           {insert} FROM generate_series(at + 1, at + 1) n; COMMIT; at := at + 1; \
         END LOOP; \
         WHILE at < {end} LOOP \
           {insert} FROM generate_series(at + 1, least(at + {ROWS_PER_TRANSACTION}, {end})) n; \
           COMMIT; at := at + {ROWS_PER_TRANSACTION}; \
         END LOOP; END $load$"
    )
}

/// A rate that is held for some seconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Step {
    /// Rows per second.
    pub rate: u64,
    /// The time that the rate is held.
    pub seconds: u64,
    /// Rows per transaction.
    pub together: u64,
}

impl Step {
    fn transactions(&self) -> u64 {
        self.rate * self.seconds / self.together
    }

    /// Returns the number of rows that the step writes in all.
    pub fn rows(&self) -> u64 {
        self.transactions() * self.together
    }
}

/// A transaction of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The time when it is due, from the beginning of the schedule.
    pub at: Duration,
    /// Number of its first row.
    pub first: u64,
    /// Number of its rows.
    pub rows: u64,
    /// Index of its step.
    pub step: usize,
}

/// Returns the transactions of the steps, one step after another. Rows are numbered from `first`
/// on.
pub fn schedule(mut first: u64, steps: &[Step]) -> Vec<Due> {
    let mut due = Vec::new();
    let mut begin = Duration::ZERO;
    for (step, of) in steps.iter().enumerate() {
        for transaction in 0..of.transactions() {
            let late = (transaction * of.together) as f64 / of.rate as f64;
            due.push(Due {
                at: begin + Duration::from_secs_f64(late),
                first,
                rows: of.together,
                step,
            });
            first += of.together;
        }
        begin += Duration::from_secs(of.seconds);
    }
    due
}

/// The times of a step's writing.
#[derive(Debug, Clone, Default)]
pub struct StepTimes {
    /// The longest delay of a transaction's beginning. Above a few milliseconds the rate was not
    /// kept.
    pub behind: Duration,
    /// The time that each transaction took, in microseconds.
    pub took: Vec<i64>,
}

/// Writes all schedules at once, each with `writers` writers, until everything is written, one
/// fails or `stop` is set. Each writer calls `connect` with the number of its schedule, and the
/// returned function for each transaction. Returns the figures of each schedule and step.
///
/// # Errors
/// The first error of a writer.
///
/// # Panics
/// If a writer panics.
pub fn write<P, E: Send>(
    schedules: &[Vec<Due>],
    writers: usize,
    stop: &AtomicBool,
    connect: impl Fn(usize) -> Result<P, E> + Sync,
) -> Result<Vec<Vec<StepTimes>>, E>
where
    P: FnMut(&Due) -> Result<(), E>,
{
    let steps = |plan: &Vec<Due>| plan.iter().map(|due| due.step + 1).max().unwrap_or(0);
    let all_connected = Barrier::new(schedules.len() * writers);
    let (all_connected, connect) = (&all_connected, &connect);
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (number, plan) in schedules.iter().enumerate() {
            for writer in 0..writers {
                let work = move || {
                    let connected = connect(number);
                    // A writer that could not connect waits here too, because the others wait for
                    // it.
                    all_connected.wait();
                    let mine = plan.iter().skip(writer).step_by(writers);
                    let done = connected
                        .and_then(|write| write_on_schedule(mine, steps(plan), stop, write));
                    if done.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                };
                running.push((number, scope.spawn(work)));
            }
        }
        let all = schedules
            .iter()
            .map(|plan| vec![StepTimes::default(); steps(plan)]);
        let mut all: Vec<_> = all.collect();
        for (number, thread) in running {
            let times = thread.join();
            let times = times.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (all, times) in all[number].iter_mut().zip(times?) {
                all.behind = all.behind.max(times.behind);
                all.took.extend(times.took);
            }
        }
        Ok(all)
    })
}

fn write_on_schedule<'a, E>(
    plan: impl Iterator<Item = &'a Due>,
    steps: usize,
    stop: &AtomicBool,
    mut write: impl FnMut(&Due) -> Result<(), E>,
) -> Result<Vec<StepTimes>, E> {
    let mut times = vec![StepTimes::default(); steps];
    let begun = Instant::now();
    for due in plan {
        thread::sleep(due.at.saturating_sub(begun.elapsed()));
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let at = Instant::now();
        write(due)?;
        let step = &mut times[due.step];
        step.took.push(at.elapsed().as_micros() as i64);
        step.behind = step.behind.max((at - begun).saturating_sub(due.at));
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_fifth_of_the_rows_is_alone() {
        let blocks: Vec<_> = backlog("INSERT INTO t SELECT n", 10_000..21_050).collect();
        let ends: Vec<u64> = blocks.iter().map(|(end, _)| *end).collect();
        assert_eq!(ends, [20_000, 21_050]);
        let sql = &blocks[1].1;
        assert!(sql.contains("at bigint := 20000"), "{sql}");
        assert!(sql.contains("WHILE at < 20210 LOOP"), "{sql}");
        assert!(sql.contains("least(at + 100, 21050)"), "{sql}");
    }

    #[test]
    fn every_transaction_of_a_schedule_is_written_once() {
        let step = |rate, together| Step {
            rate,
            seconds: 1,
            together,
        };
        let plan = schedule(7, &[step(10, 1), step(100, 50)]);
        assert_eq!(plan.len(), 12);
        assert_eq!(plan[11].first, 7 + 10 + 50);
        assert_eq!(plan[11].at, Duration::from_millis(1_500));
        let soon: Vec<Due> = plan
            .iter()
            .map(|due| Due {
                at: Duration::ZERO,
                ..*due
            })
            .collect();
        let seen = Mutex::new(Vec::new());
        let connect = |_| {
            Ok::<_, ()>(|due: &Due| {
                seen.lock().unwrap().push(due.first);
                Ok(())
            })
        };
        let times = write(&[soon], 4, &AtomicBool::new(false), connect).unwrap();
        let took: Vec<usize> = times[0].iter().map(|times| times.took.len()).collect();
        assert_eq!(took, [10, 2]);
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, plan.iter().map(|due| due.first).collect::<Vec<_>>());
        let refused = write(&[plan], 2, &AtomicBool::new(false), |_| {
            Err::<fn(&Due) -> _, _>(1)
        });
        assert_eq!(refused.unwrap_err(), 1);
    }
}
