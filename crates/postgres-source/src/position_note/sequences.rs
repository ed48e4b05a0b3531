//! The sequences of the schema `walrelay_state` that are the notes of a slot: their names, rights and values.

use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use crate::catalog::row::{is_true, parsed};
use crate::state_version;

/// The longest name of an object: `NAMEDATALEN` - 1.
const LONGEST_NAME: usize = 63;

/// Returns the name of a slot's sequence in the schema `walrelay_state`. A colon is in no slot's name,
/// so no two slots have the same sequence; a name that would be too long is that of the slot.
pub(super) fn name(slot: &str) -> String {
    let name = format!("position:{slot}");
    if name.len() <= LONGEST_NAME {
        name
    } else {
        slot.to_owned()
    }
}

/// Returns the name of the sequence that holds the system identifier of the cluster whose log has the
/// noted position. `None` if the name would be too long: then every note counts as this cluster's.
pub(super) fn system_name(slot: &str) -> Option<String> {
    short_name("system", slot)
}

/// Returns the name of the sequence that holds the contents of the publication, see [`CarriedNote`]. `None` if
/// the name would be too long: then nothing is noted of that.
pub(super) fn carried_name(slot: &str) -> Option<String> {
    short_name("publication", slot)
}

/// Returns the name of the sequence that holds the number of the sink's cluster, see `check_cluster`. `None`
/// if the name would be too long: then nothing is noted of that.
pub(super) fn cluster_name(slot: &str) -> Option<String> {
    short_name("sink", slot)
}

/// Returns the name of the sequence that holds the version of the publication's row. `None` if the name would be
/// too long: then nothing is noted of that.
pub(super) fn altered_name(slot: &str) -> Option<String> {
    short_name("altered", slot)
}

fn short_name(prefix: &str, slot: &str) -> Option<String> {
    Some(format!("{prefix}:{slot}")).filter(|name| name.len() <= LONGEST_NAME)
}

/// Returns the quoted name with its schema.
pub(super) fn quoted(name: &str) -> String {
    format!("walrelay_state.{}", quote_ident(name))
}

/// Returns SQL that creates the sequences, which every role may read, and their schema. `role`: the
/// relay's role, if another one creates them.
pub fn create_sql(slot: &str, role: Option<&str>) -> String {
    let position = (
        name(slot),
        "; -- what the slot has confirmed at most".to_owned(),
    );
    let signed = " MINVALUE -9223372036854775808; --";
    let system =
        system_name(slot).map(|name| (name, format!("{signed} the cluster of that position")));
    let carried = carried_name(slot)
        .map(|name| (name, format!("{signed} the row filters of the publication")));
    let altered = altered_name(slot)
        .map(|name| (name, "; -- the version of the publication's row".to_owned()));
    let cluster = cluster_name(slot)
        .map(|name| (name, "; -- the cluster of the sink, as a number".to_owned()));
    let mut lines = vec![
        state_version::create_sql(),
        "GRANT USAGE ON SCHEMA walrelay_state TO PUBLIC;".to_owned(),
    ];
    let notes = [position].into_iter().chain(system);
    for (name, rest) in notes.chain(carried).chain(altered).chain(cluster) {
        let sequence = quoted(&name);
        lines.push(format!("CREATE SEQUENCE IF NOT EXISTS {sequence}{rest}"));
        lines.push(format!("GRANT SELECT ON SEQUENCE {sequence} TO PUBLIC;"));
        let role = role.map(quote_ident);
        lines.extend(role.map(|role| format!("GRANT UPDATE ON SEQUENCE {sequence} TO {role};")));
    }
    lines.join("\n")
}

/// Checks whether a sequence exists, and this role has a privilege for it.
pub(super) async fn may_use(
    session: &mut Session,
    name: &str,
    privilege: &str,
) -> Result<bool, Error> {
    let sql = format!(
        "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'walrelay_state' AND c.relname = {} AND c.relkind = 'S' \
         AND NOT pg_catalog.pg_is_in_recovery() AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
         AND pg_catalog.has_sequence_privilege(c.oid, {})",
        quote_literal(name),
        quote_literal(privilege)
    );
    Ok(!session.query(&sql).await?.is_empty())
}

/// Checks whether the sequence exists, and this role has a privilege for it.
pub(crate) async fn may(session: &mut Session, slot: &str, privilege: &str) -> Result<bool, Error> {
    may_use(session, &name(slot), privilege).await
}

/// Checks whether a sequence is missing, and this role may create objects of the schema.
pub(crate) async fn may_create(session: &mut Session, name: &str) -> Result<bool, Error> {
    // CREATE SCHEMA IF NOT EXISTS needs the privilege for the database also if the schema exists.
    let sql = format!(
        "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') \
         AND NOT pg_catalog.pg_is_in_recovery() \
         AND coalesce((SELECT pg_catalog.has_schema_privilege(oid, 'CREATE') FROM pg_catalog.pg_namespace \
          WHERE nspname = 'walrelay_state'), true) \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
          WHERE n.nspname = 'walrelay_state' AND c.relname = {}) AS may",
        quote_literal(name)
    );
    let rows = session.query(&sql).await?;
    Ok(rows.first().is_some_and(|row| is_true(&row, "may")))
}

/// Checks whether this role may write a sequence of the slot, and creates it if it is missing and `create` allows
/// that: an earlier version has created the others.
pub(super) async fn may_write(
    session: &mut Session,
    slot: &str,
    create: bool,
    name: &str,
) -> Result<bool, Error> {
    if may_use(session, name, "UPDATE").await? {
        return Ok(true);
    }
    if create && may_create(session, name).await? {
        let sql = format!("{LOCK}\n{}", create_sql(slot, None));
        session.query(&sql).await?;
    }
    // Another connection of this relay may have created it meanwhile.
    may_use(session, name, "UPDATE").await
}

/// Reads the value of a sequence; `None` if it has none, or this role may not read it.
pub(super) async fn read_sequence(session: &mut Session, name: &str) -> Result<Option<i64>, Error> {
    if !may_use(session, name, "SELECT").await? {
        return Ok(None);
    }
    let sql = format!("SELECT last_value FROM {} WHERE is_called", quoted(name));
    let rows = session.query(&sql).await?;
    Ok(rows.first().and_then(|row| parsed(&row, "last_value")))
}

pub(super) async fn forget_all<const N: usize>(
    session: &mut Session,
    names: [Option<String>; N],
) -> Result<(), Error> {
    for name in names.into_iter().flatten() {
        if may_use(session, &name, "UPDATE").await? {
            let sequence = quote_literal(&quoted(&name));
            let sql = format!("SELECT pg_catalog.setval({sequence}, 1, false)");
            session.query(&sql).await?;
        }
    }
    Ok(())
}

/// SQL that takes the lock under which objects of the schema `walrelay_state` are created, until the
/// transaction ends. Workers of one process create them at the same time.
pub(crate) const LOCK: &str = "DO $do$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(\
     pg_catalog.hashtextextended('walrelay_state', 0)); END $do$;";

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
        assert_eq!(system_name("carried").as_deref(), Some("system:carried"));
        assert_eq!(system_name(&long), None);
        assert_eq!(carried_name("a").as_deref(), Some("publication:a"));
        assert_eq!(carried_name(&long), None);
    }
}
