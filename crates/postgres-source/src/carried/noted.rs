//! The note of a slot's position: a sequence of the database, which is set to each position before the
//! slot confirms it. So a slot beyond it was moved, or made anew, by something else than a relay.
//!
//! A sequence, because `setval` leaves no dead row, is no change of a published table, and is durable
//! when its transaction is committed.

use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use crate::catalog::row::parsed;

/// Bytes of WAL without an event up to which a position is neither noted nor confirmed, once the
/// server is idle. Each note is WAL, and the server writes records of its own after it: without this
/// an idle server would write for ever.
pub(crate) const MOST_UNCONFIRMED: u64 = 8 << 10;
/// The longest name of an object: `NAMEDATALEN` - 1.
const LONGEST_NAME: usize = 63;

/// Returns the name of a slot's sequence in the schema `walrelay_state`. A colon is in no slot's name,
/// so no two slots have the same sequence; a name that would be too long is that of the slot.
fn name(slot: &str) -> String {
    let name = format!("position:{slot}");
    if name.len() <= LONGEST_NAME {
        name
    } else {
        slot.to_owned()
    }
}

/// Returns the quoted name with its schema.
fn quoted(slot: &str) -> String {
    format!("walrelay_state.{}", quote_ident(&name(slot)))
}

/// Returns SQL that creates the sequence, which everybody may read, in the schema of
/// the record. `role`: the relay's role, if another one creates it.
pub fn create_sql(slot: &str, role: Option<&str>) -> String {
    let sequence = quoted(slot);
    let create = format!(
        "CREATE SEQUENCE IF NOT EXISTS {sequence}; -- what the slot has confirmed at most\n\
         GRANT SELECT ON SEQUENCE {sequence} TO PUBLIC;"
    );
    let grant = role.map(|role| {
        format!(
            "\nGRANT UPDATE ON SEQUENCE {sequence} TO {};",
            quote_ident(role)
        )
    });
    create + &grant.unwrap_or_default()
}

/// Checks whether the sequence exists, and this role has a privilege for it.
pub(super) async fn may(session: &mut Session, slot: &str, privilege: &str) -> Result<bool, Error> {
    let sql = format!(
        "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'walrelay_state' AND c.relname = {} AND c.relkind = 'S' \
         AND NOT pg_catalog.pg_is_in_recovery() AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
         AND pg_catalog.has_sequence_privilege(c.oid, {})",
        quote_literal(&name(slot)),
        quote_literal(privilege)
    );
    Ok(!session.query(&sql).await?.is_empty())
}

/// Reads the noted position, also within a transaction whose snapshot is older. `None`: nothing is
/// noted, or this role may not read it.
pub(crate) async fn read(session: &mut Session, slot: &str) -> Result<Option<Lsn>, Error> {
    if !may(session, slot, "SELECT").await? {
        return Ok(None);
    }
    let sql = format!("SELECT last_value FROM {} WHERE is_called", quoted(slot));
    let rows = session.query(&sql).await?;
    let position = rows.first().and_then(|row| parsed(&row, "last_value"));
    Ok(position.map(Lsn::new))
}

/// Creates the sequence.
pub(crate) async fn create(session: &mut Session, slot: &str) -> Result<(), Error> {
    session.query(&create_sql(slot, None)).await?;
    Ok(())
}

/// Notes a position, higher or lower, if `before` is still what is noted. Returns whether it was. To be
/// called by the process that has the slot.
pub(crate) async fn replace(
    session: &mut Session,
    slot: &str,
    before: Option<Lsn>,
    position: Lsn,
) -> Result<bool, Error> {
    let sequence = quoted(slot);
    let unchanged = match before {
        Some(before) => format!("is_called AND last_value = {}", before.get()),
        None => "NOT is_called".to_owned(),
    };
    let sql = format!(
        "SELECT pg_catalog.setval({}, {}) FROM {sequence} WHERE {unchanged}",
        quote_literal(&sequence),
        position.get()
    );
    Ok(!session.query(&sql).await?.is_empty())
}

/// Notes a position that is to be confirmed. A higher one stays: another relay, which has the slot by
/// now, has noted it.
pub(crate) async fn raise(session: &mut Session, slot: &str, position: Lsn) -> Result<(), Error> {
    let sequence = quoted(slot);
    let sql = format!(
        "SELECT pg_catalog.setval({}, greatest({}, CASE WHEN is_called THEN last_value END)) FROM {sequence}",
        quote_literal(&sequence),
        position.get()
    );
    session.query(&sql).await?;
    Ok(())
}

/// Forgets what is noted of a slot, if there is a sequence: the slot is made anew.
///
/// # Errors
/// Also if this role may not change the sequence: its position would be taken for the new slot's.
pub(super) async fn forget(session: &mut Session, slot: &str) -> Result<(), Error> {
    if read(session, slot).await?.is_some() {
        let sequence = quote_literal(&quoted(slot));
        let sql = format!("SELECT pg_catalog.setval({sequence}, 1, false)");
        session.query(&sql).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_slots_have_the_same_sequence() {
        let long = "s".repeat(LONGEST_NAME);
        let short = "s".repeat(LONGEST_NAME - "position:".len());
        for slot in ["a", "carried", &short, &long] {
            assert!(name(slot).len() <= LONGEST_NAME, "{slot}");
        }
        assert_eq!(name("carried"), "position:carried");
        assert_eq!(name(&short), format!("position:{short}"));
        assert_eq!(name(&format!("{short}s")), format!("{short}s"));
        assert_eq!(name(&long), long);
    }
}
