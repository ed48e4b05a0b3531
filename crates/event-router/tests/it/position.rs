//! The headers with an event's position and with the run that sent the event.

use walrelay_event_router::{CloudEventMode, Event, Options, Preset, Route, Router};
use walrelay_lsn::Lsn;

use crate::messages::{
    PRESETS_ROW, announce, as_row, cloud_events, debezium_outbox, event, headers, insert,
    presets_outbox, route, text,
};

const NAME: &str = "walrelay-position";

fn router(by: impl Into<Route>) -> Router {
    Router::new(by).with_position_header(Some(NAME.to_owned()))
}

/// Returns the headers of this row of the transaction with this commit record.
fn headers_of(router: &mut Router, row: &[u8], commit_lsn: u64, row_number: u64) -> Vec<String> {
    let event = Event {
        epoch: 0,
        commit_lsn: Lsn::new(commit_lsn),
        row: row_number,
        ..event()
    };
    let (relation, row) = as_row(row);
    headers(&router.route(relation, &row, &event).unwrap())
}

fn debezium_row() -> Vec<u8> {
    insert(&["0-1", "Order", "order-1", "OrderPlaced", "{\"a\": 1}"].map(text))
}

#[test]
fn every_route_has_it_as_its_last_header() {
    let debezium = debezium_outbox();
    let presets = Preset::ALL.map(|preset| {
        let router = router(preset.routes().unwrap());
        (router, presets_outbox(), insert(&PRESETS_ROW.map(text)))
    });
    let modes = [CloudEventMode::Binary, CloudEventMode::Structured].map(|mode| {
        let router = router(Options::default()).with_cloud_events(Some(cloud_events(mode)));
        (router, debezium.clone(), debezium_row())
    });
    let plain = (router(Options::default()), debezium.clone(), debezium_row());
    for (mut router, table, row) in presets.into_iter().chain(modes).chain([plain]) {
        announce(&mut router, &table).unwrap();
        // Rows of other lengths come between, as they use the same buffer.
        for (lsn, number, value) in [
            (0x16B_3748, 0, "00000000016B3748/00000000"),
            (0x16B_3748, 17, "00000000016B3748/00000011"),
            (0x2_0000_0000, 0, "0000000200000000/00000000"),
        ] {
            let headers = headers_of(&mut router, &row, lsn, number);
            assert_eq!(*headers.last().unwrap(), format!("{NAME}={value}"));
            let named = headers.iter().filter(|header| header.starts_with(NAME));
            assert_eq!((named.count(), headers.len() > 1), (1, true), "{headers:?}");
        }
    }
}

#[test]
fn without_a_name_there_is_no_position_header() {
    let mut router = Router::new(Options::default());
    announce(&mut router, &debezium_outbox()).unwrap();
    let headers = headers_of(&mut router, &debezium_row(), 8, 0);
    assert_eq!(headers, ["id=0-1"]);
}

/// Other parts of a row are rendered into the buffer that begins with the position.
#[test]
fn the_position_header_changes_nothing_else() {
    let mut plain = Router::new(Options::default());
    let mut with = router(Options::default());
    let row = debezium_row();
    for router in [&mut plain, &mut with] {
        announce(router, &debezium_outbox()).unwrap();
    }
    let plain = route(&mut plain, &row).unwrap();
    let with = route(&mut with, &row).unwrap();
    assert_eq!(with.key(), plain.key());
    assert_eq!(with.value(), plain.value());
    assert_eq!(with.topic(), plain.topic());
    assert_eq!(with.headers().len(), plain.headers().len() + 1);
}

#[test]
fn the_run_header_follows_the_position_header() {
    let mut router = router(Options::default())
        .with_run_header(Some(("walrelay-replay".to_owned(), "7f".to_owned())));
    announce(&mut router, &debezium_outbox()).unwrap();
    let headers = headers_of(&mut router, &debezium_row(), 1, 0);
    let position = format!("{NAME}=0000000000000001/00000000");
    assert_eq!(headers, ["id=0-1", &*position, "walrelay-replay=7f"]);
}
