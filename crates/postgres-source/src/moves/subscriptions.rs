//! The subscriptions that fill the outbox of a new server.

use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session};

use super::all_relations;
use crate::catalog::row::{is_true, text};

/// A subscription that fills an outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its name.
    pub name: String,
    /// The slot on the publisher. Its confirmed position is what was applied.
    pub slot: String,
    /// The initial copy of the outbox tables has ended.
    pub is_copied: bool,
}

/// Returns the subscriptions of this database that fill these tables.
pub async fn subscriptions(
    session: &mut Session,
    tables: &[TableName],
) -> Result<Vec<Subscription>, Error> {
    // Columns but the connection string are public (pg_subscription).
    let sql = format!(
        "SELECT s.subname AS name, coalesce(s.subslotname, '') AS slot, bool_and(r.srsubstate = 'r') AS is_copied \
         FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid \
         WHERE r.srrelid IN ({}) GROUP BY s.subname, s.subslotname ORDER BY 1",
        all_relations(tables)
    );
    let rows = session.query(&sql).await?;
    let found = rows.iter().map(|row| Subscription {
        name: text(&row, "name"),
        slot: text(&row, "slot"),
        is_copied: is_true(&row, "is_copied"),
    });
    Ok(found.collect())
}
