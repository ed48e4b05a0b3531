//! The note of a slot's position: a sequence of the database, which is set to each position before the
//! slot confirms it. So a slot beyond it was moved, or recreated, by something else than a relay. A second
//! sequence tells the cluster of the position: a note that was restored elsewhere shows nothing.
//!
//! A third one is the note of what the publication carries, and a fourth one that of its row's version, see
//! [`check_noted`](crate::check_noted). A fifth one tells to which cluster the records before the position were sent, see `check_cluster`.
//!
//! A sequence, because `setval` leaves no dead row, is no change of a published table, and is durable
//! when its transaction is committed.

use sha2::{Digest as _, Sha256};
use walrelay_lsn::Lsn;
use walrelay_walsender::{Ancestor, Error, Session, quote_ident, quote_literal};

use super::state_version;

use crate::catalog::row::{is_true, parsed};
use crate::catalog::slot;

/// SQL that takes the lock under which objects of the schema `walrelay_state` are created, until the
/// transaction ends. Workers of one process create them at the same time.
pub(crate) const LOCK: &str = "DO $do$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(\
     pg_catalog.hashtextextended('walrelay_state', 0)); END $do$;";
/// Bytes of WAL without an event up to which a position is neither noted nor confirmed, once the
/// server is idle. Each note is WAL, and the server writes records of its own after it: without this
/// an idle server would write for ever.
pub(crate) const MOST_UNCONFIRMED: u64 = 8 << 10;
/// The longest name of an object: `NAMEDATALEN` - 1.
const LONGEST_NAME: usize = 63;

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

/// Returns the name of the sequence that holds the system identifier of the cluster whose log has the
/// noted position. `None` if the name would be too long: then every note counts as this cluster's.
fn system_name(slot: &str) -> Option<String> {
    short_name("system", slot)
}

/// Returns the name of the sequence that holds the contents of the publication, see [`CarriedNote`]. `None` if
/// the name would be too long: then nothing is noted of that.
fn carried_name(slot: &str) -> Option<String> {
    short_name("publication", slot)
}

/// Returns the name of the sequence that holds the number of the sink's cluster, see `check_cluster`. `None`
/// if the name would be too long: then nothing is noted of that.
fn cluster_name(slot: &str) -> Option<String> {
    short_name("sink", slot)
}

/// Returns the name of the sequence that holds the version of the publication's row. `None` if the name would be
/// too long: then nothing is noted of that.
fn altered_name(slot: &str) -> Option<String> {
    short_name("altered", slot)
}

fn short_name(prefix: &str, slot: &str) -> Option<String> {
    Some(format!("{prefix}:{slot}")).filter(|name| name.len() <= LONGEST_NAME)
}

/// Returns the quoted name with its schema.
fn quoted(name: &str) -> String {
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

/// The right of this role to write the note of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It may write the sequence.
    Write,
    /// It may create the sequence.
    Create,
    /// Neither, or the server is a standby.
    None,
}

/// The note of the rows that the publication carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarriedNote {
    /// The number of the publication, its entries and their row filters that were accepted.
    Carried(i64),
    /// The publication left rows out from this position on, which is not accepted.
    LeftOut {
        /// The last position at which it is known to have carried all of them.
        from: Lsn,
    },
}

impl CarriedNote {
    /// Reads a value of the sequence.
    pub(crate) fn from_value(value: i64) -> Self {
        if value < 0 {
            let from = Lsn::new(value.unsigned_abs());
            Self::LeftOut { from }
        } else {
            Self::Carried(value)
        }
    }
}

/// The note of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// The position; `None`: none is noted, or this role may not read it.
    pub position: Option<Lsn>,
    /// The system identifier of the cluster of that position; `None` if it is not known.
    pub system: Option<u64>,
    /// What the publication carried; `None` if it is not known.
    pub carried: Option<CarriedNote>,
    /// The version of the publication's row; `None` if it is not known.
    pub altered: Option<i64>,
    /// The right of this role to write it.
    pub access: Access,
}

/// A slot's position, compared with its note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The slot is not beyond the note, or the note shows nothing.
    Continues,
    /// The note is a position in the log of another cluster.
    OtherCluster,
    /// A standby was promoted that had the slot's position, and not yet the note, which follows that
    /// position in the log.
    Promoted {
        /// The noted position.
        from: Lsn,
    },
    /// The slot is beyond the note.
    PassedOver {
        /// The noted position.
        from: Lsn,
    },
}

impl Noted {
    /// Reads the note of a slot. `create`: missing objects may be created.
    pub async fn find(session: &mut Session, slot: &str, create: bool) -> Result<Self, Error> {
        let position = read(session, slot).await?;
        let system = match system_name(slot) {
            Some(name) => read_sequence(session, &name).await?,
            None => None,
        };
        // Who may not write it cannot note that a change is accepted either.
        let carried = match carried_name(slot) {
            Some(name) if may_use(session, &name, "UPDATE").await? => {
                read_sequence(session, &name).await?
            }
            _ => None,
        };
        let altered = match altered_name(slot) {
            Some(name) if may_use(session, &name, "UPDATE").await? => {
                read_sequence(session, &name).await?
            }
            _ => None,
        };
        let access = if may(session, slot, "UPDATE").await? {
            Access::Write
        } else if create && may_create(session, &name(slot)).await? {
            Access::Create
        } else {
            Access::None
        };
        Ok(Self {
            position,
            system: system.map(i64::cast_unsigned),
            carried: carried.map(CarriedNote::from_value),
            altered,
            access,
        })
    }

    /// Returns the noted position, unless it is in the log of another cluster.
    pub fn position_in(&self, system: &str) -> Option<Lsn> {
        self.position.filter(|_| !self.is_of_other(system))
    }

    /// Returns the note of the publication, unless it is that of another cluster.
    pub(crate) fn carried_in(&self, system: &str) -> Option<CarriedNote> {
        self.carried.filter(|_| !self.is_of_other(system))
    }

    /// Returns the noted version of the publication's row, unless it is that of another cluster.
    pub(crate) fn altered_in(&self, system: &str) -> Option<i64> {
        self.altered.filter(|_| !self.is_of_other(system))
    }

    fn is_of_other(&self, system: &str) -> bool {
        self.system.is_some_and(|noted| noted.to_string() != system)
    }

    /// Compares the position of the slot with the note, on a cluster with this system identifier whose
    /// timeline has these ancestors, oldest first.
    ///
    /// A note that this role may not write shows nothing: its relay confirms positions without notes.
    pub fn compare(&self, slot: Lsn, system: &str, ancestors: &[Ancestor]) -> Standing {
        let Some(from) = self.position.filter(|_| self.access == Access::Write) else {
            return Standing::Continues;
        };
        if self.is_of_other(system) {
            return Standing::OtherCluster;
        }
        if slot <= from {
            return Standing::Continues;
        }
        // The timeline on which the noted position is.
        match ancestors.iter().find(|ancestor| from < ancestor.ended) {
            Some(ancestor) if slot <= ancestor.ended => Standing::Promoted { from },
            _ => Standing::PassedOver { from },
        }
    }
}

/// Checks whether a sequence exists, and this role has a privilege for it.
async fn may_use(session: &mut Session, name: &str, privilege: &str) -> Result<bool, Error> {
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

/// Reads the value of a sequence; `None` if it has none, or this role may not read it.
async fn read_sequence(session: &mut Session, name: &str) -> Result<Option<i64>, Error> {
    if !may_use(session, name, "SELECT").await? {
        return Ok(None);
    }
    let sql = format!("SELECT last_value FROM {} WHERE is_called", quoted(name));
    let rows = session.query(&sql).await?;
    Ok(rows.first().and_then(|row| parsed(&row, "last_value")))
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

/// Forgets the note of the sink's cluster if the noted position is that of another cluster of Postgres: the
/// database was copied, for example for tests.
async fn forget_copied_cluster(
    session: &mut Session,
    slot: &str,
    system: &str,
) -> Result<(), Error> {
    let noted = match system_name(slot) {
        Some(name) => read_sequence(session, &name).await?,
        None => None,
    };
    if noted.is_some_and(|noted| noted.cast_unsigned().to_string() != system) {
        forget_all(session, [cluster_name(slot)]).await?;
    }
    Ok(())
}

/// Returns a number of this text, at least 1. Equal texts have equal ones, in each version of walrelay.
pub(crate) fn number_of(text: &str) -> i64 {
    let digest = Sha256::digest(text.as_bytes());
    let (head, _) = digest.split_at(8);
    let number = head
        .iter()
        .fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
    (number >> 1).max(1).cast_signed()
}

/// Checks whether this role may write a sequence of the slot, and creates it if it is missing and `create` allows
/// that: an earlier version has created the others.
async fn may_write(
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

/// Notes the cluster that has acknowledged records, before their positions are noted, if none or this one is
/// noted, or another one is accepted. `system`: the cluster of Postgres. `create`: missing objects may be created.
pub(crate) async fn check_cluster(
    session: &mut Session,
    slot: &str,
    create: bool,
    system: &str,
    cluster: &SinkCluster,
) -> Result<ClusterStanding, Error> {
    let Some(name) = cluster_name(slot) else {
        return Ok(ClusterStanding::Unnoted);
    };
    forget_copied_cluster(session, slot, system).await?;
    if !may_write(session, slot, create, &name).await? {
        return Ok(ClusterStanding::Unnoted);
    }
    let (sequence, number) = (quoted(&name), number_of(&cluster.id));
    let sql = format!(
        "SELECT is_called AND last_value <> {number} AS differs, is_called FROM {sequence}"
    );
    let rows = session.query(&sql).await?;
    let found = rows.first();
    let differs = found.as_ref().is_some_and(|row| is_true(row, "differs"));
    if differs && !cluster.is_accepted {
        return Ok(ClusterStanding::Other);
    }
    if differs || !found.is_some_and(|row| is_true(&row, "is_called")) {
        let sql = format!(
            "SELECT pg_catalog.setval({}, {number})",
            quote_literal(&sequence)
        );
        session.query(&sql).await?;
    }
    Ok(if differs {
        ClusterStanding::Accepted
    } else {
        ClusterStanding::Same
    })
}

/// Begins a transaction that writes the publication's note, whatever the role's default is, and waits for no
/// lock.
pub(crate) const WRITE: &str =
    "SET transaction_read_only = off; SET LOCAL lock_timeout = '500ms'; ";

/// The sink's cluster, compared with the noted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterStanding {
    /// It is noted, or there is none to be noted.
    Same,
    /// Nothing can be noted by this role.
    Unnoted,
    /// Another one was noted, and this one is accepted.
    Accepted,
    /// Another one is noted.
    Other,
}

/// The cluster of the sink that a relay has sent records to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SinkCluster {
    /// The id by which its servers name it.
    pub(crate) id: String,
    /// It may be another one than before.
    pub(crate) is_accepted: bool,
}

/// Notes the number of the contents of the publication. `create`: missing objects may be created. Returns
/// whether this role may.
pub(crate) async fn set_carried(
    session: &mut Session,
    slot: &str,
    create: bool,
    number: i64,
) -> Result<bool, Error> {
    set_number(session, slot, create, carried_name(slot), number).await
}

/// Notes the version of the publication's row. `create`: missing objects may be created. Returns whether this role may.
pub(crate) async fn set_altered(
    session: &mut Session,
    slot: &str,
    create: bool,
    number: i64,
) -> Result<bool, Error> {
    set_number(session, slot, create, altered_name(slot), number).await
}

async fn set_number(
    session: &mut Session,
    slot: &str,
    create: bool,
    name: Option<String>,
    number: i64,
) -> Result<bool, Error> {
    let Some(name) = name else {
        return Ok(false);
    };
    if !may_write(session, slot, create, &name).await? {
        return Ok(false);
    }
    let sequence = quoted(&name);
    let sql = format!(
        "{WRITE}SELECT pg_catalog.setval({}, {number}) FROM {sequence} WHERE NOT is_called OR last_value <> {number}",
        quote_literal(&sequence)
    );
    session.query(&sql).await?;
    Ok(true)
}

/// Replaces the number of the contents of the publication, if it is still this one.
pub(crate) async fn replace_carried(
    session: &mut Session,
    slot: &str,
    before: i64,
    number: i64,
) -> Result<(), Error> {
    let condition = format!("is_called AND last_value = {before}");
    change_carried(session, slot, &number.to_string(), &condition).await
}

/// Notes that the publication left rows out from this position on, or from an earlier one that is noted.
pub(crate) async fn set_left_out(
    session: &mut Session,
    slot: &str,
    from: Lsn,
) -> Result<(), Error> {
    let value = format!(
        "greatest(-{}, CASE WHEN is_called AND last_value < 0 THEN last_value END)",
        from.get().max(1)
    );
    change_carried(session, slot, &value, "true").await
}

/// Changes the note of the contents of the publication to an SQL value, under an SQL condition, if there is a sequence
/// for it that this role may write.
async fn change_carried(
    session: &mut Session,
    slot: &str,
    value: &str,
    condition: &str,
) -> Result<(), Error> {
    let Some(name) = carried_name(slot) else {
        return Ok(());
    };
    if may_use(session, &name, "UPDATE").await? {
        let sequence = quoted(&name);
        let sql = format!(
            "{WRITE}SELECT pg_catalog.setval({}, {value}) FROM {sequence} WHERE {condition}",
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

async fn forget_all<const N: usize>(
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

    /// Another version must find the notes of this one.
    #[test]
    fn a_text_has_the_same_number_in_each_version() {
        assert_eq!(number_of("cluster-one"), 7_312_801_945_711_217_569);
        assert_ne!(number_of("cluster-two"), number_of("cluster-one"));
    }

    #[test]
    fn a_value_of_the_publications_sequence_is_a_number_or_a_position() {
        let from = Lsn::new(0x7fff_ffff_ffff_ffff);
        let value = -0x7fff_ffff_ffff_ffff;
        assert_eq!(
            CarriedNote::from_value(value),
            CarriedNote::LeftOut { from }
        );
        assert_eq!(CarriedNote::from_value(1), CarriedNote::Carried(1));
    }

    fn noted(position: Option<u64>, system: Option<u64>, access: Access) -> Noted {
        Noted {
            position: position.map(Lsn::new),
            system,
            carried: None,
            altered: None,
            access,
        }
    }

    #[test]
    fn a_slot_beyond_its_note_was_moved_unless_a_promotion_explains_it() {
        let from = Lsn::new(100);
        let ancestors = [(1, 90), (2, 120), (3, 150)].map(|(timeline, ended)| Ancestor {
            timeline,
            ended: Lsn::new(ended),
        });
        let (promoted, passed_over) = (Standing::Promoted { from }, Standing::PassedOver { from });
        let note = noted(Some(100), Some(7), Access::Write);
        for (slot, ancestors, expected) in [
            (90, &[][..], Standing::Continues),
            (100, &[], Standing::Continues),
            (101, &[], passed_over),
            // The note is on timeline 2, which ended at 120.
            (120, &ancestors, promoted),
            (121, &ancestors, passed_over),
            (160, &ancestors, passed_over),
            (101, &ancestors[..1], passed_over),
        ] {
            let found = note.compare(Lsn::new(slot), "7", ancestors);
            assert_eq!(found, expected, "{slot} {ancestors:?}");
        }
        for (note, expected) in [
            (noted(Some(100), None, Access::Write), passed_over),
            (
                noted(Some(100), Some(8), Access::Write),
                Standing::OtherCluster,
            ),
            (noted(None, Some(7), Access::Write), Standing::Continues),
            (noted(None, None, Access::Create), Standing::Continues),
            (noted(Some(100), Some(7), Access::None), Standing::Continues),
        ] {
            assert_eq!(note.compare(Lsn::new(200), "7", &[]), expected, "{note:?}");
        }
        assert_eq!(note.position_in("7"), Some(from));
        assert_eq!(note.position_in("8"), None);
    }
}
