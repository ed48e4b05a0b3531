//! Rows of several kinds that are written on a schedule at the same time.

use std::sync::atomic::AtomicBool;

use walrelay_lab::load::{self, Due, Step, Wrote};
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

impl Stream {
    /// Orders, as those of the backlog.
    pub(crate) fn orders(steps: &[Step]) -> [Self; 1] {
        let (kind, steps) = ("order", steps.to_vec());
        [Self { kind, steps }]
    }
}

/// Rows are alone in their transactions up to a rate at which commits take a good part of two
/// processors.
pub(crate) fn step(rate: u64, seconds: u64) -> Step {
    const COMMITS: u64 = 1_000;
    Step {
        rate,
        seconds,
        together: rate.div_ceil(COMMITS).max(1),
    }
}

/// Connections of a stream. More than commits take at any time: one that takes long keeps no other
/// waiting.
const WRITERS: usize = 16;
/// Rows of streams have numbers this far apart.
const APART: u64 = 1_000_000_000;

/// Of which stream and step a row of this number is.
pub(crate) fn place_of(streams: &[Stream], number: u64) -> (usize, usize) {
    let stream = (number / APART) as usize;
    let mut within = number % APART;
    for (step, rows) in streams[stream].steps.iter().map(Step::rows).enumerate() {
        if within < rows {
            return (stream, step);
        }
        within -= rows;
    }
    panic!("no stream wrote row {number}");
}

/// Writes all streams, and has `writers` send what was committed, if there are any. Returns how it went, for
/// each stream and step.
pub(crate) fn write(
    url: &str,
    table: &str,
    streams: &[Stream],
    writers: Option<&Writers>,
) -> Vec<Vec<Wrote>> {
    let plans = streams.iter().zip(0..);
    let plans = plans.map(|(stream, number)| load::schedule(number * APART, &stream.steps));
    let plans: Vec<_> = plans.collect();
    let connect = |stream: usize| {
        let kind = streams[stream].kind;
        let db = Db::connect(url);
        let put = Rig::prepare_put(&db, table, kind, writers.is_some());
        Ok::<_, tokio_postgres::Error>(move |due: &Due| {
            let rows = Rig::put(&db, &put, due.first as i64, due.rows as i64)?;
            if let Some(writers) = writers {
                writers.send(kind, &rows);
            }
            Ok(())
        })
    };
    let wrote = load::write(&plans, WRITERS, &AtomicBool::new(false), connect);
    wrote.expect("the rows are written")
}
