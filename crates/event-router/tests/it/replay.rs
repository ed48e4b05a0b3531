//! What a replay changes: which events are taken, and their topics.

use walrelay_event_router::{Event, Options, Router, Row, TopicChange};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;

use crate::messages::{TEXT, announce, as_row, debezium_outbox, insert, relation, text};

fn row(kind: &str, key: &str) -> Vec<u8> {
    insert(&[
        text("00000000-0000-0000-0000-000000000001"),
        text("Order"),
        text(key),
        text(kind),
        text("{}"),
    ])
}

/// Whether the row is taken, and its topic.
fn taken(router: &mut Router, row: &[u8]) -> Option<String> {
    let event = Event {
        commit_lsn: Lsn::new(1),
        row: 0,
        commit_time: PgTimestamp::new(0),
    };
    let (relation, tuple) = as_row(row);
    let mut read = Row::default();
    router.read(relation, &tuple, &event, &mut read).unwrap();
    (!read.is_passed_over()).then(|| router.routed(&read).topic().to_owned())
}

#[test]
fn events_are_selected_by_their_parts() {
    for (conditions, kind, key, takes) in [
        ("type = 'A'", "A", "k", true),
        ("type = 'A'", "B", "k", false),
        ("type = 'A' and key = 'k'", "A", "other", false),
        ("topic = 'outbox.event.Order'", "A", "k", true),
        ("topic = 'again.outbox.event.Order'", "A", "k", false),
        (
            "id = '00000000-0000-0000-0000-000000000001'",
            "A",
            "k",
            true,
        ),
    ] {
        let mut router = Router::new(Options::default())
            .with_selection(Some(conditions.parse().unwrap()))
            .with_topic_change(Some(TopicChange::Prefix("again.".to_owned())));
        announce(&mut router, &debezium_outbox()).unwrap();
        let found = taken(&mut router, &row(kind, key));
        assert_eq!(found.is_some(), takes, "{conditions} of {kind}, {key}");
        if let Some(topic) = found {
            assert_eq!(topic, "again.outbox.event.Order");
        }
    }
}

#[test]
fn one_topic_takes_all() {
    let change = TopicChange::To("repaired".to_owned());
    let mut router = Router::new(Options::default()).with_topic_change(Some(change));
    announce(&mut router, &debezium_outbox()).unwrap();
    assert_eq!(
        taken(&mut router, &row("A", "k")).as_deref(),
        Some("repaired")
    );
}

#[test]
fn a_table_without_the_column_of_types_is_named() {
    let mut router =
        Router::new(Options::default()).with_selection(Some("type = 'A'".parse().unwrap()));
    let columns = ["id", "aggregatetype", "aggregateid", "payload"].map(|name| (name, TEXT));
    let error = announce(&mut router, &relation(&columns)).unwrap_err();
    assert!(error.to_string().contains("\"type\""), "{error}");
}
