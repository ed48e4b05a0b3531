//! Rows written on a schedule that does not heed how long anything takes.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use walrelay_testkit::Db;

use crate::rig::Rig;
use crate::writers::Writers;

/// Rows of one kind, at one rate after another.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// The aggregate's type, and so the topic.
    pub(crate) kind: &'static str,
    pub(crate) steps: Vec<Step>,
}

/// A steady rate.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Step {
    /// Rows a second.
    pub(crate) rate: u64,
    pub(crate) seconds: u64,
    /// Rows of a transaction.
    pub(crate) together: u64,
}

impl Step {
    /// Rows are alone in their transactions up to a rate at which commits take a good part of two
    /// processors.
    pub(crate) fn new(rate: u64, seconds: u64) -> Self {
        const COMMITS: u64 = 1_000;
        Self {
            rate,
            seconds,
            together: rate.div_ceil(COMMITS).max(1),
        }
    }

    fn transactions(&self) -> u64 {
        self.rate * self.seconds / self.together
    }

    pub(crate) fn rows(&self) -> u64 {
        self.transactions() * self.together
    }
}

/// Connections of a stream. More than commits take at any time: one that takes long keeps no other
/// waiting.
const WRITERS: usize = 16;
/// Rows of streams have numbers this far apart.
const APART: i64 = 1_000_000_000;

/// Of which stream and step a row of this number is.
pub(crate) fn place_of(streams: &[Stream], number: i64) -> (usize, usize) {
    let stream = (number / APART) as usize;
    let mut within = (number % APART) as u64;
    for (step, rows) in streams[stream].steps.iter().map(Step::rows).enumerate() {
        if within < rows {
            return (stream, step);
        }
        within -= rows;
    }
    panic!("no stream wrote row {number}");
}

/// A transaction to come.
struct Due {
    at: Duration,
    first: i64,
    rows: i64,
    step: usize,
}

fn schedule(stream: usize, steps: &[Step]) -> Vec<Due> {
    let mut due = Vec::new();
    let mut begin = Duration::ZERO;
    let mut first = stream as i64 * APART;
    for (step, of) in steps.iter().enumerate() {
        for transaction in 0..of.transactions() {
            let late = (transaction * of.together) as f64 / of.rate as f64;
            due.push(Due {
                at: begin + Duration::from_secs_f64(late),
                first,
                rows: of.together as i64,
                step,
            });
            first += of.together as i64;
        }
        begin += Duration::from_secs(of.seconds);
    }
    due
}

/// How the writing of a step went.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wrote {
    /// How late a row was at the most.
    pub(crate) behind: Duration,
    /// How long each transaction took who wrote it, in microseconds.
    pub(crate) took: Vec<i64>,
}

impl Wrote {
    fn add(&mut self, other: Self) {
        self.behind = self.behind.max(other.behind);
        self.took.extend(other.took);
    }
}

/// Writes all of it, and has `writers` send what was committed, if there are any. How it went, for each
/// stream and step.
pub(crate) fn write(
    url: &str,
    table: &str,
    streams: &[Stream],
    writers: Option<&Writers>,
) -> Vec<Vec<Wrote>> {
    let plans: Vec<_> = streams
        .iter()
        .enumerate()
        .map(|(number, stream)| (stream.kind, schedule(number, &stream.steps)))
        .collect();
    let together = Barrier::new(plans.len() * WRITERS);
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (number, (kind, plan)) in plans.iter().enumerate() {
            for writer in 0..WRITERS {
                let together = &together;
                let steps = streams[number].steps.len();
                let thread = scope.spawn(move || {
                    let db = Db::connect(url);
                    let put = Rig::prepare_put(&db, table, kind, writers.is_some());
                    let mut wrote = vec![Wrote::default(); steps];
                    together.wait();
                    let begun = Instant::now();
                    for due in plan.iter().skip(writer).step_by(WRITERS) {
                        thread::sleep(due.at.saturating_sub(begun.elapsed()));
                        let at = Instant::now();
                        let rows = Rig::put(&db, &put, due.first, due.rows);
                        let took = at.elapsed();
                        if let Some(writers) = writers {
                            writers.send(kind, &rows);
                        }
                        wrote[due.step].add(Wrote {
                            behind: at.duration_since(begun).saturating_sub(due.at),
                            took: vec![took.as_micros() as i64],
                        });
                    }
                    wrote
                });
                running.push((number, thread));
            }
        }
        let mut all: Vec<Vec<Wrote>> = streams
            .iter()
            .map(|stream| vec![Wrote::default(); stream.steps.len()])
            .collect();
        for (number, thread) in running {
            let wrote = thread.join().expect("a writer ends well");
            for (all, wrote) in all[number].iter_mut().zip(wrote) {
                all.add(wrote);
            }
        }
        all
    })
}
