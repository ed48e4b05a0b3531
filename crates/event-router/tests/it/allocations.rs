use walrelay_event_router::{Options, Preset, Route, Router};

use crate::messages::{
    PRESETS_ROW, announce, debezium_outbox, insert_texts, presets_outbox, route,
};

/// Routes all rows twice, with and without a position header. The first pass grows the buffers, the
/// second allocates nothing.
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
    // The first pass shows that the counter works.
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
            let payload = "x".repeat(i * 64);
            insert_texts(&[
                Some("00000000-0000-0000-0000-000000000001"),
                Some(["Order", "Customer"][i % 2]),
                (i % 3 != 0).then_some("agg-1"),
                Some("OrderCreated"),
                Some(&payload),
            ])
        })
        .collect();
    nothing_is_allocated(Options::default(), &debezium_outbox(), &rows);
}

#[test]
fn a_row_of_a_preset_allocates_nothing() {
    let rows: Vec<Vec<u8>> = (0..64)
        .map(|i| {
            let payload = format!("{{\"x\": \"{}\"}}", "x".repeat(i * 64));
            let mut row = PRESETS_ROW.map(Some);
            row[1] = Some(["Order", "Kündigung"][i % 2]);
            row[4] = Some(&payload);
            row[5] = (i % 3 != 0).then_some("{}");
            insert_texts(&row)
        })
        .collect();
    for preset in Preset::ALL {
        nothing_is_allocated(preset.routes().unwrap(), &presets_outbox(), &rows);
    }
}
