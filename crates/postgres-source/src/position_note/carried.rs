//! The notes of the publication: its contents, and the version of its row.

use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session, quote_literal};

use super::sequences::{altered_name, carried_name, may_use, may_write, quoted};

/// Begins a transaction that writes the publication's note, whatever the role's default is, and waits for no
/// lock.
pub(crate) const WRITE: &str =
    "SET transaction_read_only = off; SET LOCAL lock_timeout = '500ms'; ";

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
