//! No allocation per row: from the bytes of a read to the position that may be confirmed.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../benches/core/feed.rs"]
mod feed;

use feed::Way;
use walrelay_event_router::{Options, Router};

/// The first time around grows what is kept.
fn rows_in_transactions_of(rows: usize, position_header: Option<&str>) {
    let mut way = None;
    let router =
        Router::new(Options::default()).with_position_header(position_header.map(str::to_owned));
    let first = allocation_counter::measure(|| way = Some(Way::new(router, 2_000, rows)));
    assert!(first.count_total > 0, "the counter counts: {first:?}");
    let mut way = way.expect("it was made");
    assert!(way.memory.bytes().len() > 2_000 * 270, "rows as they are");
    let again = allocation_counter::measure(|| {
        for _ in 0..10 {
            way.pass();
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
        rows_in_transactions_of(rows, None);
        rows_in_transactions_of(rows, Some("walrelay-position"));
    }
}
