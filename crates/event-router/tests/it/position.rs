//! The headers that carry an event's position and the run that sent it.

use walrelay_event_router::{
    CloudEventMode, CloudEvents, Event, Lookups, Options, Place, Preset, Route, Router, Template,
};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;

use crate::messages::{announce, as_row, debezium_outbox, insert, presets_outbox, route, text};

const NAME: &str = "walrelay-position";

fn router(by: impl Into<Route>) -> Router {
    Router::new(by).with_position_header(Some(NAME.to_owned()))
}

fn event(commit_lsn: u64, row: u64) -> Event {
    Event {
        commit_lsn: Lsn::new(commit_lsn),
        row,
        commit_time: PgTimestamp::new(820_638_245_678_000),
    }
}

/// Names of the headers, and the last one's value.
fn headers(router: &mut Router, row: &[u8], event: &Event) -> (Vec<String>, String) {
    let (relation, row) = as_row(row);
    let routed = router.route(relation, &row, event).unwrap();
    let names = routed.headers().iter().map(|header| header.name.to_owned());
    let last = routed.headers().last().unwrap();
    let value = String::from_utf8(last.value.unwrap().to_vec()).unwrap();
    (names.collect(), value)
}

fn debezium_row() -> Vec<u8> {
    insert(&[
        text("00000000-0000-0000-0000-000000000001"),
        text("Order"),
        text("order-1"),
        text("OrderPlaced"),
        text(r#"{"a": 1}"#),
    ])
}

fn cloud_events(mode: CloudEventMode) -> CloudEvents {
    let template = |text| Template::parse(text, Place::Header, &Lookups::new()).unwrap();
    CloudEvents {
        mode,
        id: None,
        source: template("/orders"),
        kind: template("com.example.{type}"),
        time: None,
        subject: None,
        content_type: "application/json".to_owned(),
        lookups: Lookups::new(),
    }
}

#[test]
fn every_route_has_it_as_its_last_header() {
    let of_presets = insert(&[
        text("00000000-0000-0000-0000-000000000001"),
        text("Order"),
        text("order-1"),
        text("order.placed"),
        text("order.placed"),
        text("{}"),
        text("{}"),
        text("2026-01-02 03:04:05.678+00"),
    ]);
    let debezium = debezium_outbox();
    let presets = Preset::ALL.map(|preset| {
        let route = Route::from(preset.routes().unwrap());
        (router(route), presets_outbox(), of_presets.clone())
    });
    let modes = [CloudEventMode::Binary, CloudEventMode::Structured].map(|mode| {
        let router = router(Options::default()).with_cloud_events(Some(cloud_events(mode)));
        (router, debezium.clone(), debezium_row())
    });
    let plain = (router(Options::default()), debezium.clone(), debezium_row());
    for (mut router, table, row) in presets.into_iter().chain(modes).chain([plain]) {
        announce(&mut router, &table).unwrap();
        // Rows of other lengths come between: a value must be of its own row.
        for (lsn, number, value) in [
            (0x16B_3748, 0, "00000000016B3748/00000000"),
            (0x16B_3748, 17, "00000000016B3748/00000011"),
            (0x2_0000_0000, 0, "0000000200000000/00000000"),
        ] {
            let (names, last) = headers(&mut router, &row, &event(lsn, number));
            assert_eq!(last, value);
            assert_eq!(names.last().unwrap(), NAME);
            let named = names.iter().filter(|name| *name == NAME);
            assert_eq!((named.count(), names.len() > 1), (1, true), "{names:?}");
        }
    }
}

#[test]
fn without_a_name_there_is_none() {
    let mut router = Router::new(Options::default());
    announce(&mut router, &debezium_outbox()).unwrap();
    let (names, _) = headers(&mut router, &debezium_row(), &event(8, 0));
    assert_eq!(names, ["id"]);
}

/// Whatever else of a row is rendered into the same buffer.
#[test]
fn the_rest_of_the_record_stays_what_it_is() {
    let mut plain = Router::new(Options::default());
    let mut with = router(Options::default());
    let row = debezium_row();
    for router in [&mut plain, &mut with] {
        announce(router, &debezium_outbox()).unwrap();
    }
    let (plain, with) = (
        route(&mut plain, &row).unwrap(),
        route(&mut with, &row).unwrap(),
    );
    assert_eq!(with.key(), plain.key());
    assert_eq!(with.value(), plain.value());
    assert_eq!(with.topic(), plain.topic());
    assert_eq!(with.headers().len(), plain.headers().len() + 1);
}

#[test]
fn the_header_of_a_run_is_behind_the_position() {
    let mut router = router(Options::default())
        .with_run_header(Some(("walrelay-replay".to_owned(), "7f".to_owned())));
    announce(&mut router, &debezium_outbox()).unwrap();
    let (names, last) = headers(&mut router, &debezium_row(), &event(1, 0));
    assert_eq!(names, ["id", NAME, "walrelay-replay"]);
    assert_eq!(last, "7f");
}
