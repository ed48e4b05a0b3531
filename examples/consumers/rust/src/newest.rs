//! Keeps the newest value of each key, whatever is repeated. For rdkafka and tokio-postgres.
//!
//! For caches, upserted tables and compacted topics: no table of processed events is needed. The relay writes
//! the position header with `position_header = "walrelay-position"` in `[router]`.
//!
//! ```sql
//! CREATE TABLE newest (key text PRIMARY KEY, position text COLLATE "C", value text)
//! ```

use std::str::from_utf8;

use rdkafka::message::{Headers as _, Message};
use tokio_postgres::Client;

pub const POSITION_HEADER: &str = "walrelay-position";

/// Positions are compared as bytes, which is what the collation "C" does. A record without a position,
/// which `walrelay resend` sends, never replaces one that has a position.
const APPLY: &str = "\
    INSERT INTO newest AS kept (key, position, value) VALUES ($1, $2, $3) \
    ON CONFLICT (key) DO UPDATE SET position = excluded.position, value = excluded.value \
    WHERE kept.position IS NULL OR kept.position < excluded.position";

/// Applies a record. False: it is not newer than what is kept.
///
/// A tombstone keeps its row, with a NULL value: its position must be known when an older record comes.
///
/// # Errors
/// Of Postgres, or if a part is no UTF-8.
pub async fn apply(
    client: &Client,
    message: &impl Message,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let mut headers = message.headers().into_iter().flat_map(|all| all.iter());
    let position = headers.find(|header| header.key == POSITION_HEADER);
    let position = position.and_then(|header| header.value);
    let key = message.key().map(from_utf8).transpose()?;
    let position = position.map(from_utf8).transpose()?;
    let value = message.payload().map(from_utf8).transpose()?;
    Ok(client.execute(APPLY, &[&key, &position, &value]).await? == 1)
}
