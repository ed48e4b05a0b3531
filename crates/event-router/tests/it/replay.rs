//! Selections and changes of topics, as a replay uses them.

use walrelay_event_router::{Options, Router, Row, TopicChange};

use crate::messages::{TEXT, announce, as_row, debezium_outbox, event, insert, relation, text};

fn row(kind: &str, key: &str) -> Vec<u8> {
    insert(&["0-1", "Order", key, kind, "{}"].map(text))
}

/// Routes a row; returns its topic, and `None` if the selection leaves the row out.
fn taken(router: &mut Router, row: &[u8]) -> Option<String> {
    let (relation, tuple) = as_row(row);
    let mut read = Row::default();
    router.read(relation, &tuple, &event(), &mut read).unwrap();
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
        ("id = '0-1'", "A", "k", true),
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
fn one_topic_can_replace_all() {
    let change = TopicChange::To("repaired".to_owned());
    let mut router = Router::new(Options::default()).with_topic_change(Some(change));
    announce(&mut router, &debezium_outbox()).unwrap();
    assert_eq!(
        taken(&mut router, &row("A", "k")).as_deref(),
        Some("repaired")
    );
}

#[test]
fn a_selection_by_type_needs_the_column() {
    let mut router =
        Router::new(Options::default()).with_selection(Some("type = 'A'".parse().unwrap()));
    let columns = ["id", "aggregatetype", "aggregateid", "payload"].map(|name| (name, TEXT));
    let error = announce(&mut router, &relation(&columns)).unwrap_err();
    assert!(error.to_string().contains("\"type\""), "{error}");
}
