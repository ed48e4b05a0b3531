//! The histograms.

use prometheus_client::registry::Unit;
use walrelay_sink::SIZE_BOUNDS;

use super::Labels;
use crate::Telemetry;
use crate::state::latencies::Buckets;

/// A histogram of a pipeline.
pub(crate) struct Histogram {
    /// The name without the prefix and the unit.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) help: &'static str,
    pub(crate) buckets: fn(&Telemetry) -> Buckets,
    /// Labels besides that of the pipeline.
    pub(crate) labels: fn(&Telemetry) -> Labels,
}

/// The histograms, in the order of `docs/reference/metrics.md`.
pub(crate) const HISTOGRAMS: [Histogram; 3] = [
    Histogram {
        name: "commit_to_ack",
        unit: Unit::Seconds,
        help: "From commit to acknowledgement, of a sample of transactions, by the clocks of the server and of this machine",
        buckets: |telemetry| telemetry.commit_to_ack.buckets(),
        labels: |_| Labels::new(),
    },
    Histogram {
        name: "commit_to_read",
        unit: Unit::Seconds,
        help: "From commit to the moment when the whole transaction is received, of the same sample",
        buckets: |telemetry| telemetry.commit_to_read.buckets(),
        labels: |_| Labels::new(),
    },
    Histogram {
        name: "event_value",
        unit: Unit::Bytes,
        help: "Values of the events that the sink has accepted, repeats included, by the label sink, the kind of the destination; stdout counts none",
        buckets: event_values,
        labels: |telemetry| vec![("sink", telemetry.sink_kind().to_owned())],
    },
];

fn event_values(telemetry: &Telemetry) -> Buckets {
    let (counts, sum) = telemetry.sink.sizes.counts();
    let bounds = SIZE_BOUNDS.iter().map(|bound| *bound as f64);
    Buckets {
        sum: sum as f64,
        counts: bounds.chain([f64::INFINITY]).zip(counts).collect(),
    }
}
