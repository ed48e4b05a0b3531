//! The columns of a table while a plan is compiled for it: found by name, given slots.

use walrelay_pgoutput::{Column, Relation, Tuple, Value};

use super::error::{self, PlanError, RouteError};
use super::role::Role;
use crate::value::Fault;

/// The columns that a plan needs, in the order in which they are asked for. [`finish`](Self::finish)
/// gives each its place in the row.
#[derive(Debug)]
pub(crate) struct Columns<'r> {
    relation: &'r Relation<'r>,
    table: String,
    /// Index in the table, by slot.
    needed: Vec<usize>,
}

/// A column that was found.
pub(crate) struct Found<'r> {
    pub(crate) slot: usize,
    pub(crate) column: Column<'r>,
}

impl<'r> Columns<'r> {
    pub(crate) fn of(relation: &'r Relation<'r>) -> Self {
        Self {
            relation,
            table: format!("{}.{}", relation.namespace, relation.name),
            needed: Vec::new(),
        }
    }

    /// `schema.table`, for errors.
    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// The first column of this name. Asked for again it has the same slot.
    pub(crate) fn find(&mut self, name: &str) -> Option<Found<'r>> {
        let (index, column) = self
            .relation
            .columns()
            .enumerate()
            .find(|(_, column)| column.name == name)?;
        let known = self.needed.iter().position(|needed| *needed == index);
        let slot = known.unwrap_or_else(|| {
            self.needed.push(index);
            self.needed.len() - 1
        });
        Some(Found { slot, column })
    }

    /// The same of a column that must be there.
    pub(crate) fn needed(
        &mut self,
        name: &str,
        role: impl FnOnce() -> Role,
    ) -> Result<Found<'r>, PlanError> {
        self.find(name).ok_or_else(|| self.missing(name, role()))
    }

    /// The place in the table of a column that must be there. Gives it no slot.
    pub(crate) fn index(
        &self,
        name: &str,
        role: impl FnOnce() -> Role,
    ) -> Result<usize, PlanError> {
        let found = self.relation.columns().position(|known| known.name == name);
        found.ok_or_else(|| self.missing(name, role()))
    }

    /// There is no column of this name.
    pub(crate) fn missing(&self, name: &str, role: Role) -> PlanError {
        let names = || self.relation.columns().map(|column| column.name);
        PlanError::MissingColumn {
            table: self.table.clone(),
            column: name.to_owned(),
            role,
            columns: names().map(str::to_owned).collect(),
            nearest: error::nearest(name, names(), 0.8),
        }
    }

    /// A column is of a type that is of no use for this role.
    pub(crate) fn unsupported(&self, name: &str, type_oid: u32, role: Role) -> PlanError {
        PlanError::UnsupportedType {
            table: self.table.clone(),
            column: name.to_owned(),
            role,
            type_oid,
        }
    }

    /// Where the values of the slots are.
    pub(crate) fn finish(self) -> Slots {
        let mut order: Vec<(usize, usize)> = self.needed.iter().copied().zip(0..).collect();
        order.sort_unstable();
        let name = |index: &usize| {
            let column = self.relation.columns().nth(*index);
            column.map_or_else(Box::default, |column| column.name.into())
        };
        Slots {
            columns: self.relation.columns().count(),
            names: self.needed.iter().map(name).collect(),
            order: order.into(),
            table: self.table.into(),
        }
    }
}

impl Slots {
    /// Why a row cannot be routed, where `role` was to be filled.
    #[cold]
    pub(crate) fn error(&self, fault: Fault, role: &Role) -> RouteError {
        let name = self.names.get(fault.slot);
        RouteError::Value {
            table: self.table.to_string(),
            column: name.map_or_else(String::new, ToString::to_string),
            role: role.clone(),
            why: fault.why,
        }
    }

    /// The values of the columns that are needed, by slot.
    pub(crate) fn values<'t>(&self, tuple: &Tuple<'t>, into: &mut [Value<'t>]) {
        let mut values = tuple.values();
        let mut at = 0;
        for (index, slot) in &self.order {
            let value = loop {
                let Some(value) = values.next() else { return };
                at += 1;
                if at > *index {
                    break value;
                }
            };
            if let Some(place) = into.get_mut(*slot) {
                *place = value;
            }
        }
    }

    /// One column more, the one at this index of the row. Gives its slot.
    pub(crate) fn add(&mut self, index: usize, name: &str) -> usize {
        if let Some((_, slot)) = self.order.iter().find(|(known, _)| *known == index) {
            return *slot;
        }
        let slot = self.names.len();
        let mut names = std::mem::take(&mut self.names).into_vec();
        names.push(name.into());
        self.names = names.into();
        let mut order = std::mem::take(&mut self.order).into_vec();
        order.push((index, slot));
        order.sort_unstable();
        self.order = order.into();
        slot
    }
}

/// Where the columns are that a plan needs.
#[derive(Debug)]
pub(crate) struct Slots {
    /// `schema.table`, for errors.
    pub(crate) table: Box<str>,
    /// How many columns the table was announced with; every row must have as many.
    pub(crate) columns: usize,
    /// By slot.
    pub(crate) names: Box<[Box<str>]>,
    /// Index in the row and slot, by index: a row is walked once.
    pub(crate) order: Box<[(usize, usize)]>,
}
