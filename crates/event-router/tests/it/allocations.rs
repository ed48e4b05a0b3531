use walrelay_event_router::{Options, Router};

use crate::messages::{Cell, announce, debezium_outbox, insert, route, text};

#[test]
fn a_routed_row_allocates_nothing() {
    let mut router = Router::new(Options::default());
    announce(&mut router, &debezium_outbox()).unwrap();
    let rows: Vec<Vec<u8>> = (0..64)
        .map(|i| {
            insert(&[
                text("00000000-0000-0000-0000-000000000001"),
                text(if i % 2 == 0 { "Order" } else { "Customer" }),
                if i % 3 == 0 {
                    Cell::Null
                } else {
                    text("agg-1")
                },
                text("OrderCreated"),
                text(&"x".repeat(i * 64)),
            ])
        })
        .collect();
    let mut payload_bytes = 0;
    let mut all = || {
        for row in &rows {
            payload_bytes += route(&mut router, row).unwrap().record().payload_bytes();
        }
    };
    // The counter counts: the first pass grows the buffer of the topic.
    let first = allocation_counter::measure(&mut all);
    assert!(first.count_total > 0, "{first:?}");
    let second = allocation_counter::measure(&mut all);
    assert_eq!(second.count_total, 0, "{second:?}");
    assert!(payload_bytes > 0);
}
