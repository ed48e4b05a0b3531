//! The note of a slot's position: a sequence of the database, which is set to each position before the
//! slot confirms it. So a slot beyond it was moved, or recreated, by something else than a relay. A second
//! sequence tells the cluster of the position: a note that was restored elsewhere shows nothing.
//!
//! A third one is the note of what the publication carries, and a fourth one that of its row's version (`carried`), see
//! [`check_noted`](crate::check_noted). A fifth one tells to which cluster the records before the position were sent
//! (`cluster`).
//!
//! A sequence, because `setval` leaves no dead row, is no change of a published table, and is durable
//! when its transaction is committed.

mod carried;
mod cluster;
mod noted;
mod sequences;

use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session, quote_literal};

pub use carried::CarriedNote;
pub(crate) use carried::{WRITE, replace_carried, set_altered, set_carried, set_left_out};
pub(crate) use cluster::{ClusterStanding, SinkCluster, check_cluster, number_of};
pub use noted::{Access, Noted, Standing};
pub use sequences::create_sql;
pub(crate) use sequences::{LOCK, may_create};
use sequences::{
    altered_name, carried_name, cluster_name, forget_all, may, may_use, name, quoted,
    read_sequence, system_name,
};

use crate::catalog::row::is_true;
use crate::catalog::slot;

/// Bytes of WAL without an event up to which a position is neither noted nor confirmed, once the
/// server is idle. Each note is WAL, and the server writes records of its own after it: without this
/// an idle server would write for ever.
pub(crate) const MOST_UNCONFIRMED: u64 = 8 << 10;

/// Notes the position of a slot that was just made, if there is a sequence that this role may change.
/// Otherwise the relay notes the position when it reads the slot first.
pub async fn made(session: &mut Session, name: &str) -> Result<(), Error> {
    let found = slot(session, name).await?;
    match found.and_then(|slot| slot.confirmed) {
        Some(position) if may(session, name, "UPDATE").await? => {
            raise(session, name, position).await
        }
        _ => Ok(()),
    }
}

/// Creates the sequences that are missing, for the relay's role if one is named. Returns whether the
/// sequence of the position was created. A role that may write it only now has confirmed positions without
/// notes, so former notes are forgotten.
pub async fn grant(session: &mut Session, slot: &str, role: Option<&str>) -> Result<bool, Error> {
    let sequence = quote_literal(&quoted(&name(slot)));
    let role_name = quote_literal(role.unwrap_or_default());
    let sql = format!(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {role_name} AND NOT \
          pg_catalog.has_sequence_privilege(oid, c.oid, 'UPDATE')) AS new_to_role \
         FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass({sequence})"
    );
    let rows = session.query(&sql).await?;
    let new_to_role = rows.first().is_some_and(|row| is_true(&row, "new_to_role"));
    session.query(&create_sql(slot, role)).await?;
    if new_to_role {
        forget(session, slot).await?;
    }
    Ok(rows.is_empty())
}

/// Reads the noted position, also within a transaction whose snapshot is older. `None`: nothing is
/// noted, or this role may not read it.
pub(crate) async fn read(session: &mut Session, slot: &str) -> Result<Option<Lsn>, Error> {
    let position = read_sequence(session, &name(slot)).await?;
    Ok(position.map(|position| Lsn::new(position.cast_unsigned())))
}

/// Notes of which cluster the noted position is, if there is a sequence for that which this role may
/// write.
pub(crate) async fn set_system(
    session: &mut Session,
    slot: &str,
    system: &str,
) -> Result<(), Error> {
    let Some((name, system)) = system_name(slot).zip(system.parse::<u64>().ok()) else {
        return Ok(());
    };
    let system = system.cast_signed();
    if may_use(session, &name, "UPDATE").await? {
        let sequence = quoted(&name);
        let sql = format!(
            "SELECT pg_catalog.setval({}, {system}) FROM {sequence} WHERE NOT is_called OR last_value <> {system}",
            quote_literal(&sequence)
        );
        session.query(&sql).await?;
    }
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
    let sequence = quoted(&name(slot));
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
    let sequence = quoted(&name(slot));
    let sql = format!(
        "SELECT pg_catalog.setval({}, greatest({}, CASE WHEN is_called THEN last_value END)) FROM {sequence}",
        quote_literal(&sequence),
        position.get()
    );
    session.query(&sql).await?;
    Ok(())
}

/// Forgets the note of a slot, if this role may write it. A note that stays is before the position
/// of each later slot of this name, so it hides no move.
pub async fn forget(session: &mut Session, slot: &str) -> Result<(), Error> {
    forget_all(
        session,
        [
            Some(name(slot)),
            carried_name(slot),
            altered_name(slot),
            cluster_name(slot),
        ],
    )
    .await
}

/// Forgets the position of a slot, which the user has moved, if this role may write it.
pub async fn forget_position(session: &mut Session, slot: &str) -> Result<(), Error> {
    forget_all(session, [Some(name(slot))]).await
}
