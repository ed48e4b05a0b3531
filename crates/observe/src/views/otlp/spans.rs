//! A span for each batch: the records that one confirmed position covers.

use serde_json::{Value, json};
use walrelay_relay::PgTimestamp;

use super::attributes;
use crate::state::batches::Batch;

/// `SPAN_KIND_PRODUCER`.
const PRODUCER: u8 = 4;

/// Makes the span of a batch in OTLP's `ScopeSpans`; each is a trace of its own. `sink`: the kind of
/// sink, whose name is that of OpenTelemetry's `messaging.system`, where that has one. `pipeline`:
/// the name of the batch's pipeline, if there are several.
pub(super) fn span(batch: &Batch, sink: &str, pipeline: Option<&str>) -> Value {
    let nanos =
        |time: PgTimestamp| (i128::from(time.unix_micros().unwrap_or_default()) * 1000).to_string();
    json!({
        // The specification forbids ids of zero.
        "traceId": format!("{:032x}", fastrand::u128(1..)),
        "spanId": format!("{:016x}", fastrand::u64(1..)),
        "name": "walrelay batch",
        "kind": PRODUCER,
        "startTimeUnixNano": nanos(batch.began),
        "endTimeUnixNano": nanos(batch.ended),
        "attributes": attributes([
            ("messaging.system", sink),
            ("messaging.batch.message_count", &*batch.records.to_string()),
            ("walrelay.transactions", &*batch.transactions.to_string()),
            ("walrelay.confirmed_lsn", &*batch.confirmed),
        ].into_iter().chain(pipeline.map(|name| ("walrelay.pipeline", name)))),
        "status": {},
    })
}
