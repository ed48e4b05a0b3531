//! The producer against a real Postgres: `WALRELAY_EXAMPLE_POSTGRES` names it.

use tokio_postgres::{Client, NoTls};

use super::*;

const TABLES: [(Table, &str, &str); 4] = [
    (
        Table::Debezium,
        "outbox",
        "id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text",
    ),
    (
        Table::EventsOutbox,
        "events_outbox",
        "id bigserial PRIMARY KEY, aggregate_id text, type text",
    ),
    (
        Table::OutboxEvents,
        "outbox_events",
        "id uuid PRIMARY KEY, aggregate_id text, event_type text",
    ),
    (
        Table::Outbox,
        "outbox",
        "id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text",
    ),
];
const EVENT: Event<'_> = Event {
    id: None,
    aggregate: "Order",
    key: "42",
    kind: "placed",
};

async fn connect() -> Client {
    let url = std::env::var("WALRELAY_EXAMPLE_POSTGRES").expect("WALRELAY_EXAMPLE_POSTGRES");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The tables, in a schema of the test's own.
async fn fresh(client: &Client, schema: &str, (_, name, columns): (Table, &str, &str)) {
    let sql = format!(
        "DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}; SET search_path = {schema}; \
         CREATE TABLE orders (id int); CREATE TABLE {name} ({columns}, payload jsonb)"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn place(transaction: &Transaction<'_>, table: Table) {
    transaction
        .execute("INSERT INTO orders VALUES (42)", &[])
        .await
        .unwrap();
    emit(transaction, table, &EVENT, &json!({ "n": 42 }))
        .await
        .unwrap();
}

/// Compares the numbers of changes and events, as another session sees them.
async fn expect(schema: &str, name: &str, number: i64) {
    let other = connect().await;
    for name in ["orders", name] {
        let sql = format!("SELECT count(*) FROM {schema}.{name}");
        let count: i64 = other.query_one(&sql, &[]).await.unwrap().get(0);
        assert_eq!(count, number, "{name}");
    }
}

#[tokio::test]
async fn a_commit_makes_one_event_and_a_rollback_none() {
    let mut client = connect().await;
    for of in TABLES {
        fresh(&client, "commits", of).await;
        let transaction = client.transaction().await.unwrap();
        place(&transaction, of.0).await;
        transaction.commit().await.unwrap();
        expect("commits", of.1, 1).await;
        let transaction = client.transaction().await.unwrap();
        place(&transaction, of.0).await;
        transaction.rollback().await.unwrap();
        expect("commits", of.1, 1).await;
    }
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_leaves_none() {
    let mut client = connect().await;
    fresh(&client, "savepoints", TABLES[0]).await;
    let mut transaction = client.transaction().await.unwrap();
    place(&transaction, Table::Debezium).await;
    let savepoint = transaction.savepoint("one").await.unwrap();
    place(&savepoint, Table::Debezium).await;
    savepoint.rollback().await.unwrap();
    transaction.commit().await.unwrap();
    expect("savepoints", "outbox", 1).await;
}

#[tokio::test]
async fn it_refuses_before_a_change() {
    let mut client = connect().await;
    fresh(&client, "refuses", TABLES[0]).await;
    let transaction = client.transaction().await.unwrap();
    let refused = emit(&transaction, Table::Debezium, &EVENT, &json!({})).await;
    assert!(matches!(refused, Err(EmitError::NoChange)), "{refused:?}");
    transaction.commit().await.unwrap();
    expect("refuses", "outbox", 0).await;
}

#[tokio::test]
async fn ids_rise_and_can_be_given() {
    let mut client = connect().await;
    fresh(&client, "ids", TABLES[0]).await;
    let transaction = client.transaction().await.unwrap();
    for _ in 0..100 {
        place(&transaction, Table::Debezium).await;
    }
    transaction.commit().await.unwrap();
    let sql = "SELECT array_agg(id ORDER BY ctid) = array_agg(id ORDER BY id) FROM outbox";
    assert!(client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
    let given = Uuid::from_u128(7);
    let transaction = client.transaction().await.unwrap();
    transaction
        .execute("INSERT INTO orders VALUES (42)", &[])
        .await
        .unwrap();
    let event = Event {
        id: Some(given),
        ..EVENT
    };
    emit(&transaction, Table::Debezium, &event, &json!({}))
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let found = client
        .query("SELECT FROM outbox WHERE id = $1", &[&given])
        .await
        .unwrap();
    assert_eq!(found.len(), 1);
}

#[tokio::test]
async fn a_message_without_a_table_is_in_the_log_once() {
    let mut client = connect().await;
    fresh(&client, "messages", TABLES[0]).await;
    let slot = "SELECT pg_create_logical_replication_slot('example_rust', 'test_decoding')";
    client.execute(slot, &[]).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    place(&transaction, Table::Message).await;
    transaction.commit().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    place(&transaction, Table::Message).await;
    transaction.rollback().await.unwrap();
    let sql = "SELECT data FROM pg_logical_slot_get_changes('example_rust', NULL, NULL) \
               WHERE data LIKE '%prefix: outbox%'";
    let messages = client.query(sql, &[]).await.unwrap();
    client
        .execute("SELECT pg_drop_replication_slot('example_rust')", &[])
        .await
        .unwrap();
    assert_eq!(messages.len(), 1);
}

#[tokio::test]
async fn several_events_are_one_message_in_their_order() {
    let mut client = connect().await;
    fresh(&client, "batches", TABLES[0]).await;
    let slot = "SELECT pg_create_logical_replication_slot('example_rust_all', 'test_decoding')";
    client.execute(slot, &[]).await.unwrap();
    let given = Event {
        id: Some(Uuid::from_u128(7)),
        ..EVENT
    };
    let events = [(EVENT, json!({ "n": 1 })), (given, json!({ "n": 2 }))];
    for commits in [true, false] {
        let transaction = client.transaction().await.unwrap();
        let refused = emit_all(&transaction, &events).await;
        assert!(matches!(refused, Err(EmitError::NoChange)), "{refused:?}");
        let change = "INSERT INTO orders VALUES (42)";
        transaction.execute(change, &[]).await.unwrap();
        emit_all(&transaction, &events).await.unwrap();
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }
    let sql = "SELECT split_part(data, 'content:', 2) FROM \
               pg_logical_slot_get_changes('example_rust_all', NULL, NULL) WHERE data LIKE '%prefix: outbox%'";
    let messages = client.query(sql, &[]).await.unwrap();
    client
        .execute("SELECT pg_drop_replication_slot('example_rust_all')", &[])
        .await
        .unwrap();
    assert_eq!(messages.len(), 1);
    let batch: serde_json::Value = serde_json::from_str(messages[0].get(0)).unwrap();
    assert_eq!(
        (&batch[0]["payload"]["n"], &batch[1]["payload"]["n"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(batch[1]["id"], json!(Uuid::from_u128(7).to_string()));
}
