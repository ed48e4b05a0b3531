//! The note of the sink's cluster: to which servers the records before the noted position were sent.

use sha2::{Digest as _, Sha256};
use walrelay_walsender::{Error, Session, quote_literal};

use super::sequences::{cluster_name, forget_all, may_write, quoted, read_sequence, system_name};
use crate::catalog::row::is_true;

/// The cluster of the sink that a relay has sent records to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SinkCluster {
    /// The id by which its servers name it.
    pub(crate) id: String,
    /// It may be another one than before.
    pub(crate) is_accepted: bool,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Another version must find the notes of this one.
    #[test]
    fn a_text_has_the_same_number_in_each_version() {
        assert_eq!(number_of("cluster-one"), 7_312_801_945_711_217_569);
        assert_ne!(number_of("cluster-two"), number_of("cluster-one"));
    }
}
