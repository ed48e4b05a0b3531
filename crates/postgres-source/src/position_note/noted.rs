//! [`Noted`]: the note of a slot, and its comparison with the slot's position.

use walrelay_lsn::Lsn;
use walrelay_walsender::{Ancestor, Error, Session};

use super::carried::CarriedNote;
use super::read;
use super::sequences::{
    altered_name, carried_name, may, may_create, may_use, name, read_sequence, system_name,
};

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

#[cfg(test)]
mod tests {
    use super::*;

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
