//! [`silence_is_shown`]: a sink whose server answers nothing.

use std::sync::Arc;
use std::time::Instant;

use walrelay_sink::{AnySinkFactory, EndpointStats, EventPosition, Record, SinkStats};

use crate::PATIENCE;
use crate::conformance::Destination;
use crate::open_sink::OpenSink;
use crate::wait::eventually;

/// Asserts that the figures of a sink call its only server silent before the sink gives up the request,
/// and up again when the server answers. `topic` is there.
///
/// # Panics
/// If they do not.
#[track_caller]
#[expect(clippy::print_stderr, reason = "the output of a test")]
pub fn silence_is_shown(
    server: &impl Destination,
    topic: &str,
    (mut factory, stats): (AnySinkFactory, Option<Arc<SinkStats>>),
) {
    let stats = stats.expect("figures");
    let states = || {
        let endpoints = stats.endpoints().into_iter();
        endpoints.map(|endpoint| endpoint.state).collect::<Vec<_>>()
    };
    let mut sink = OpenSink::new(&mut factory, None);
    let mut send = |number: u8| {
        sink.send(&Record {
            topic,
            key: Some(b"key"),
            value: Some(&[number]),
            event_id: Some(&[b'0' + number]),
            position: EventPosition::in_first_epoch(number.into(), 0),
            ..Record::default()
        });
        Arc::clone(&sink.reports)
    };
    send(1).wait_for(1);
    assert_eq!(states(), [EndpointStats::UP]);
    server.pause();
    let (reports, sent) = (send(2), Instant::now());
    eventually(PATIENCE, || stats.is_down());
    eprintln!("shown after {:.1} s", sent.elapsed().as_secs_f64());
    let shown = states();
    server.resume();
    assert_eq!(shown, [EndpointStats::NO_ANSWER]);
    reports.wait_for(2);
    assert_eq!(reports.failures(), []);
    eventually(PATIENCE, || {
        !stats.is_down() && states() == [EndpointStats::UP]
    });
}
