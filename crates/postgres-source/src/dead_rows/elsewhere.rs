//! Stored keys of dead letters that are in another store than the configured one, for example because `[sink] kind` or
//! `[poison] topic` was changed. Nothing shows how these dead letters are resolved, so their rows stay.

use walrelay_walsender::{Error, Session, quote_literal};

use super::table::{TABLE, has_keys, may_read};
use crate::catalog::row::{parsed, text};

/// The stored keys of a slot's dead letters in another store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "rows of {keys} dead letters stay: walrelay_state.dead says that the dead letters are in {store}, and {}",
    match configured.as_str() {
        "" => "the configured sink has none",
        _ => "another store is configured",
    }
)]
pub struct KeysElsewhere {
    /// The slot.
    pub slot: String,
    /// The sink and the topic that have the dead letters.
    pub store: String,
    /// The configured ones; empty if the sink has no dead letters.
    pub configured: String,
    /// The number of keys.
    pub keys: u64,
}

impl KeysElsewhere {
    /// Returns the statement that deletes the keys.
    pub fn delete_sql(&self) -> String {
        let (slot, store) = (quote_literal(&self.slot), quote_literal(&self.store));
        format!("DELETE FROM {TABLE} WHERE slot = {slot} AND store = {store}")
    }
}

/// Returns the stored keys of dead letters in other stores than `configured`, as far as this session may read them. Keys
/// of earlier versions name no store.
pub async fn keys_elsewhere(
    session: &mut Session,
    slot: &str,
    configured: &str,
) -> Result<Vec<KeysElsewhere>, Error> {
    if !may_read(session).await? || !has_keys(session, slot).await? {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT store, count(*) AS keys FROM {TABLE} WHERE slot = {} AND store NOT IN ('', {}) \
         GROUP BY store ORDER BY store",
        quote_literal(slot),
        quote_literal(configured)
    );
    let rows = session.query(&sql).await?;
    let stores = rows.iter().map(|row| KeysElsewhere {
        slot: slot.to_owned(),
        store: text(&row, "store"),
        configured: configured.to_owned(),
        keys: parsed(&row, "keys").unwrap_or(0),
    });
    Ok(stores.collect())
}
