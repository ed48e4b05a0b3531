//! Streams: rows of several kinds, written on a schedule at the same time.

use std::sync::atomic::AtomicBool;

use walrelay_measure::load::{self, Due, Step, StepTimes};
use walrelay_testkit::Db;

use crate::harness::Harness;
use crate::writers::Writers;

/// Rows of one kind, at one rate after another.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// Aggregate type of the rows, which names the topic.
    pub(crate) kind: &'static str,
    pub(crate) steps: Vec<Step>,
}

impl Stream {
    /// Creates a stream of orders, like the rows of a backlog.
    pub(crate) fn orders(steps: &[Step]) -> [Self; 1] {
        let (kind, steps) = ("order", steps.to_vec());
        [Self { kind, steps }]
    }
}

/// Returns a step with one row per transaction, up to 1,000 commits per second: beyond that,
/// commits would take a large part of two processors.
pub(crate) fn step(rate: u64, seconds: u64) -> Step {
    const COMMITS: u64 = 1_000;
    Step {
        rate,
        seconds,
        together: rate.div_ceil(COMMITS).max(1),
    }
}

/// Connections per stream. There are more than run at any time, so that a slow commit delays no
/// other.
const WRITERS: usize = 16;
/// Distance between the row numbers of two streams.
const STREAM_OFFSET: u64 = 1_000_000_000;

/// Returns which stream and which step a row number belongs to.
pub(crate) fn step_of(streams: &[Stream], number: u64) -> (usize, usize) {
    let stream = (number / STREAM_OFFSET) as usize;
    let mut within = number % STREAM_OFFSET;
    for (step, rows) in streams[stream].steps.iter().map(Step::rows).enumerate() {
        if within < rows {
            return (stream, step);
        }
        within -= rows;
    }
    panic!("no stream wrote row {number}");
}

/// Writes all streams. If `writers` is given, it sends each transaction after its commit. Returns
/// the figures of each stream and step.
pub(crate) fn write(
    url: &str,
    table: &str,
    streams: &[Stream],
    writers: Option<&Writers>,
) -> Vec<Vec<StepTimes>> {
    let plans = streams.iter().zip(0..);
    let plans = plans.map(|(stream, number)| load::schedule(number * STREAM_OFFSET, &stream.steps));
    let plans: Vec<_> = plans.collect();
    let connect = |stream: usize| {
        let kind = streams[stream].kind;
        let db = Db::connect(url);
        let statement = Harness::prepare_insert(&db, table, kind, writers.is_some());
        Ok::<_, tokio_postgres::Error>(move |due: &Due| {
            let rows = Harness::insert_rows(&db, &statement, due.first as i64, due.rows as i64)?;
            if let Some(writers) = writers {
                writers.send(kind, &rows);
            }
            Ok(())
        })
    };
    let times = load::write(&plans, WRITERS, &AtomicBool::new(false), connect);
    times.expect("the rows are written")
}
