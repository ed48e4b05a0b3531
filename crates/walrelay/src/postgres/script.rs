//! The SQL that makes a database ready for a relay.

use walrelay_relay::TableName;
use walrelay_walsender::{quote_ident, quote_literal};

/// `"schema"."name"`.
pub fn table(name: &TableName) -> String {
    format!("{}.{}", quote_ident(&name.schema), quote_ident(&name.name))
}

/// Creates an outbox table of the `debezium` preset, if there is none of that name.
pub fn create_table(name: &TableName) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (\n\
         \x20   id            uuid PRIMARY KEY DEFAULT gen_random_uuid(), -- header \"id\": recognises a repeat\n\
         \x20   aggregatetype text NOT NULL, -- topic outbox.event.<aggregatetype>\n\
         \x20   aggregateid   text NOT NULL, -- key: order is kept per key\n\
         \x20   type          text NOT NULL, -- what happened, for the consumers\n\
         \x20   payload       jsonb          -- value\n\
         );",
        table(name)
    )
}

/// Creates the publication: inserts only, partitions under their root's name.
pub fn create_publication(publication: &str, tables: &[TableName]) -> String {
    format!(
        "CREATE PUBLICATION {} FOR TABLE {}\n    WITH (publish = 'insert', publish_via_partition_root = true);",
        quote_ident(publication),
        tables.iter().map(table).collect::<Vec<_>>().join(", ")
    )
}

/// Creates the role the relay connects as: it may replicate and log in, and owns and reads nothing.
pub fn create_role(role: &str) -> String {
    format!(
        "CREATE ROLE {} LOGIN REPLICATION; -- then: \\password {role}",
        quote_ident(role)
    )
}

/// Creates the slot. From here on the server keeps the log for the relay. `failover`: standbys keep
/// a copy of it (17 and newer).
pub fn create_slot(slot: &str, failover: bool) -> String {
    format!(
        "SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput'{});",
        quote_literal(slot),
        if failover { ", failover => true" } else { "" }
    )
}

/// Drops the slot.
pub fn drop_slot(slot: &str) -> String {
    format!(
        "SELECT pg_catalog.pg_drop_replication_slot({});",
        quote_literal(slot)
    )
}
