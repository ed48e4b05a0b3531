use walrelay_event_router::{Options, Preset, Route, Router};

use crate::messages::{Cell, announce, debezium_outbox, insert, presets_outbox, route, text};

/// Routes all rows twice, without and with a position header: the first pass grows buffers, the second
/// allocates nothing.
fn nothing_is_allocated(route_by: impl Into<Route>, table: &[u8], rows: &[Vec<u8>]) {
    let route_by = route_by.into();
    for position_header in [None, Some("walrelay-position".to_owned())] {
        let router = Router::new(route_by.clone()).with_position_header(position_header);
        nothing_is_allocated_by(router, table, rows);
    }
}

fn nothing_is_allocated_by(mut router: Router, table: &[u8], rows: &[Vec<u8>]) {
    announce(&mut router, table).unwrap();
    let mut payload_bytes = 0;
    let mut all = || {
        for row in rows {
            payload_bytes += route(&mut router, row).unwrap().record().payload_bytes();
        }
    };
    // The counter counts.
    let first = allocation_counter::measure(&mut all);
    assert!(first.count_total > 0, "{first:?}");
    let second = allocation_counter::measure(&mut all);
    assert_eq!(second.count_total, 0, "{second:?}");
    assert!(payload_bytes > 0);
}

#[test]
fn a_routed_row_allocates_nothing() {
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
    nothing_is_allocated(Options::default(), &debezium_outbox(), &rows);
}

#[test]
fn a_row_of_a_preset_allocates_nothing() {
    for preset in Preset::ALL {
        let rows: Vec<Vec<u8>> = (0..64)
            .map(|i| {
                insert(&[
                    text("00000000-0000-0000-0000-000000000001"),
                    text(if i % 2 == 0 { "Order" } else { "Kündigung" }),
                    text("agg \"1\""),
                    text("order.placed"),
                    text("order.placed"),
                    text(&format!("{{\"x\": \"{}\"}}", "x".repeat(i * 64))),
                    if i % 3 == 0 { Cell::Null } else { text("{}") },
                    text("2026-01-02 03:04:05.678+00"),
                ])
            })
            .collect();
        nothing_is_allocated(preset.routes().unwrap(), &presets_outbox(), &rows);
    }
}
