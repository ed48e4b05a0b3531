//! The record that a snapshot was read to its end: a sequence of the database, which is set to the
//! snapshot's position before the slot is made.
//!
//! A slot without it may be another program's, and the rows from before it may never have been sent. A
//! sequence, because a publication of all tables does not carry it.

use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use crate::position_note::LOCK;
use crate::state_version;

/// The longest name of a slot that has a record: `NAMEDATALEN` - 1 without the prefix.
const LONGEST_SLOT: usize = 54;

fn name(slot: &str) -> Option<String> {
    (slot.len() <= LONGEST_SLOT).then(|| format!("snapshot:{slot}"))
}

fn quoted(name: &str) -> String {
    format!("walrelay_state.{}", quote_ident(name))
}

/// Returns SQL that creates the sequence, which every role may read. `role`: the relay's role, if another
/// one creates it. Empty for a slot whose name is too long.
pub fn create_sql(slot: &str, role: Option<&str>) -> String {
    let Some(name) = name(slot) else {
        return String::new();
    };
    let sequence = quoted(&name);
    let schema = state_version::create_sql();
    let create = format!(
        "{schema}\n\
         CREATE SEQUENCE IF NOT EXISTS {sequence}; -- the position of the snapshot that was read\n\
         GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;\nGRANT SELECT ON SEQUENCE {sequence} TO PUBLIC;"
    );
    let grant = role.map(|role| {
        let role = quote_ident(role);
        format!("\nGRANT UPDATE ON SEQUENCE {sequence} TO {role};")
    });
    create + &grant.unwrap_or_default()
}

/// Returns whether a sequence of this name exists that fulfils the condition.
async fn is_there(session: &mut Session, name: &str, condition: &str) -> Result<bool, Error> {
    let sql = format!(
        "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'walrelay_state' AND c.relname = {} AND c.relkind = 'S' AND {condition}",
        quote_literal(name)
    );
    Ok(!session.query(&sql).await?.is_empty())
}

/// Returns whether a relay has read a snapshot of this slot to its end. `false` also if this role may
/// not read the record.
pub async fn is_complete(session: &mut Session, slot: &str) -> Result<bool, Error> {
    let readable = "pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
         AND pg_catalog.has_sequence_privilege(c.oid, 'SELECT')";
    let Some(name) = name(slot) else {
        return Ok(false);
    };
    if !is_there(session, &name, readable).await? {
        return Ok(false);
    }
    let sql = format!("SELECT FROM {} WHERE is_called", quoted(&name));
    Ok(!session.query(&sql).await?.is_empty())
}

/// Records that a snapshot was read to its end, at this position. Returns false if the slot's name is
/// too long.
pub(crate) async fn complete(session: &mut Session, slot: &str, point: Lsn) -> Result<bool, Error> {
    let Some(name) = name(slot) else {
        return Ok(false);
    };
    if !is_there(session, &name, "true").await? {
        let sql = create_sql(slot, None);
        session.query(&format!("{LOCK}\n{sql}")).await?;
    }
    set(session, &name, &point.get().to_string()).await?;
    Ok(true)
}

/// Forgets the snapshot of a slot, if one is recorded: another slot has the name from now on.
///
/// # Errors
/// Also if this role may not change the record: it would be taken for the new slot's.
pub async fn forget(session: &mut Session, slot: &str) -> Result<(), Error> {
    if is_complete(session, slot).await?
        && let Some(name) = name(slot)
    {
        set(session, &name, "1, false").await?;
    }
    Ok(())
}

async fn set(session: &mut Session, name: &str, value: &str) -> Result<(), Error> {
    let sequence = quote_literal(&quoted(name));
    let sql = format!("SELECT pg_catalog.setval({sequence}, {value})");
    session.query(&sql).await?;
    Ok(())
}
