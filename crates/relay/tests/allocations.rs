//! There is no allocation per row, from the bytes of a read to the position that may be confirmed.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../benches/core/feed.rs"]
mod feed;

use feed::WholePipeline;
use walrelay_event_router::{Options, Router};

/// Asserts that passes over transactions of `rows` rows allocate nothing. The first pass does,
/// because buffers grow.
fn assert_no_allocations(rows: usize, position_header: Option<&str>) {
    let mut pipeline = None;
    let router =
        Router::new(Options::default()).with_position_header(position_header.map(str::to_owned));
    let first = allocation_counter::measure(|| {
        pipeline = Some(WholePipeline::new(router, 2_000, rows, |sink| sink));
    });
    assert!(first.count_total > 0, "the counter counts: {first:?}");
    let mut pipeline = pipeline.expect("it was made");
    let bytes = pipeline.stream.bytes().len();
    assert!(bytes > 2_000 * 270, "the rows are too small");
    let again = allocation_counter::measure(|| {
        for _ in 0..10 {
            pipeline.pass();
        }
    });
    assert_eq!(
        again.count_total, 0,
        "transactions of {rows} rows: {again:?}"
    );
}

#[test]
fn a_row_allocates_nothing() {
    for rows in [1, 7, 100, 2_000] {
        assert_no_allocations(rows, None);
        assert_no_allocations(rows, Some("walrelay-position"));
    }
}
