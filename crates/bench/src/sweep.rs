//! The relay with other loads: many topics, few and many partitions, payload sizes, TLS, messages and batches
//! instead of rows. Each load
//! is drained in turns with the ordinary load of the same number of rows, and shown as a ratio to
//! it.

use serde::Serialize;

use crate::checker::Checker;
use crate::contender::Contender;
use crate::drain::{self, DrainSpec, Drained};
use crate::harness::{Backlog, Harness};
use crate::load_kind::{Form, Load, PARTITIONS};
use crate::quiet::Quiet;
use crate::warm_up::warm_up;

/// The runs of a load beside those of the ordinary load.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Swept {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    pub(crate) tls: bool,
    pub(crate) runs: Vec<Drained>,
    /// Runs of the ordinary load, in turns with the others.
    pub(crate) base: Vec<Drained>,
}

struct Case {
    name: &'static str,
    /// Short name: for `BENCH_SWEEP`, and in the names of slots and tables.
    word: &'static str,
    topics: u32,
    partitions: i32,
    bytes: Option<u32>,
    tls: bool,
    form: Form,
}

const BASE: Case = Case {
    name: "1 topic, 8 partitions, 271 B",
    word: "base",
    topics: 1,
    partitions: PARTITIONS,
    bytes: None,
    tls: false,
    form: Form::Rows,
};

/// Builds cases from name, short name, and the fields that differ from [`BASE`].
macro_rules! cases {
    ($($name:literal, $word:literal: $($field:ident = $value:expr),+;)*) => {
        &[$(Case { name: $name, word: $word, $($field: $value,)+ ..BASE }),*]
    };
}

const CASES: &[Case] = cases! {
    "64 topics", "topics64": topics = 64;
    "1,000 topics of 1 partition", "topics1000": topics = 1000, partitions = 1;
    "1 partition", "partitions1": partitions = 1;
    "64 partitions", "partitions64": partitions = 64;
    "payloads of 100 B", "bytes100": bytes = Some(100);
    "payloads of 1 KB", "bytes1000": bytes = Some(1_000);
    "payloads of 10 KB, a tenth of the rows", "bytes10000": bytes = Some(10_000);
    "TLS to Postgres and Kafka", "tls": tls = true;
    "messages instead of rows", "messages1": form = Form::Messages;
    "messages, ten a batch", "messages10": form = Form::Batches;
};

impl Case {
    fn backlog(&self, harness: &Harness, rows: u64) -> Backlog {
        let large = self.bytes.is_some_and(|bytes| bytes >= 10_000);
        let load = Load {
            rows: if large { rows / 10 } else { rows },
            topics: self.topics,
            partitions: self.partitions,
            bytes: self.bytes,
            form: self.form,
        };
        harness.backlog(&format!("sweep_{}", self.word), load)
    }
}

pub(crate) fn run(
    harness: &Harness,
    rows: u64,
    rounds: usize,
    only: &str,
    quiet: &mut Quiet,
    progress: impl Fn(&str, &Drained),
) -> Vec<Swept> {
    let base = BASE.backlog(harness, rows);
    let mut base_checker = Checker::new(harness, &base);
    let mut count = 0;
    let mut drain = |case: &Case, backlog: &Backlog, checker: &mut Checker| {
        count += 1;
        let spec = DrainSpec {
            harness,
            backlog,
            contender: Contender::RELAY,
            round: count,
            tls: case.tls,
        };
        let run = drain::run(&spec, checker, quiet);
        progress(case.name, &run);
        run
    };
    // The warm-up runs do not count.
    warm_up(|_| drain(&BASE, &base, &mut base_checker).cost_to_broker());
    let mut swept = Vec::new();
    for case in CASES.iter().filter(|case| case.word.contains(only)) {
        let backlog = case.backlog(harness, rows);
        let mut checker = Checker::new(harness, &backlog);
        // The first run of a case does not count either: the broker's JIT compiler learns the new
        // load.
        drain(case, &backlog, &mut checker);
        let (mut runs, mut bases) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            bases.push(drain(&BASE, &base, &mut base_checker));
            runs.push(drain(case, &backlog, &mut checker));
        }
        // Drop the slot, so that Postgres may remove the WAL of this backlog.
        harness.drop_slot(&backlog.kept);
        swept.push(Swept {
            name: case.name,
            load: backlog.load,
            tls: case.tls,
            runs,
            base: bases,
        });
    }
    swept
}
