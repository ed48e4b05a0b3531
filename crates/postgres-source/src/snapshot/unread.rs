//! [`Unread`]: a snapshot that is configured and not read, because the slot exists already.

use walrelay_walsender::{Error, Session};

use super::anchor::expected_rows;
use super::record;
use crate::catalog::{Filters, Wanted, published_tables};

/// Rows from before a slot of which nothing shows that a snapshot was read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "slot {slot} exists, and no record says that walrelay read a snapshot before it: no snapshot is read, and {} that \
     [source] snapshot selects are not relayed from the table",
    rows(*.expected)
)]
pub struct Unread {
    slot: String,
    /// Rows that the planner expects; `None` if they cannot be read.
    expected: Option<u64>,
}

fn rows(expected: Option<u64>) -> String {
    expected.map_or_else(
        || "the rows".to_owned(),
        |rows| format!("about {rows} row(s)"),
    )
}

impl Unread {
    /// Returns the ways on.
    pub fn remedy(&self) -> String {
        format!(
            "if these rows were not sent, stop the relay, drop the slot (walrelay slots drop {}) and start again, \
             or send them (walrelay resend); if they were, remove snapshot from [source]",
            self.slot
        )
    }
}

/// Returns the rows that are not read although a snapshot is wanted. The slot exists.
pub async fn unread(session: &mut Session, wanted: &Wanted) -> Result<Option<Unread>, Error> {
    let Some(selection) = &wanted.snapshot else {
        return Ok(None);
    };
    if record::is_complete(session, &wanted.slot).await? {
        return Ok(None);
    }
    let mut published = published_tables(session, &wanted.publication, Filters::Hidden).await?;
    published.retain(|published| wanted.tables.contains(&published.table));
    // A table that is locked, or that this role may not read, is no reason to wait or to fail.
    session.query("SET lock_timeout = '1s'").await?;
    let expected = expected_rows(session, &published, selection).await.ok();
    session.query("RESET lock_timeout").await?;
    let slot = wanted.slot.clone();
    Ok(Some(Unread { slot, expected }))
}
