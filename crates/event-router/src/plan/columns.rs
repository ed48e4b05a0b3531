//! The columns of a table while a plan is compiled for it: found by name, given slots.

use walrelay_pgoutput::{Column, Relation, Tuple, Value};

use super::error::{self, PlanError, RouteError};
use super::role::Role;
use crate::value::Fault;

/// The columns that a plan needs, in the order in which they are asked for.
pub(crate) struct Columns<'r> {
    relation: &'r Relation<'r>,
    /// `schema.table`, for errors.
    table: String,
    /// Index in the table, by slot.
    needed: Vec<usize>,
}

/// Where the columns are that a plan needs.
pub(crate) struct Slots {
    pub(crate) table: String,
    /// The number of the table's columns, and of each row's.
    pub(crate) columns: usize,
    pub(crate) names: Vec<String>,
    /// Index in the row and slot, by index: a row is walked once.
    order: Vec<(usize, usize)>,
}

impl<'r> Columns<'r> {
    pub(crate) fn of(relation: &'r Relation<'r>) -> Self {
        Self {
            relation,
            table: format!("{}.{}", relation.namespace, relation.name),
            needed: Vec::new(),
        }
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// The slot of the first column of this name, and the column. A column has one slot.
    pub(crate) fn find(&mut self, name: &str) -> Option<(usize, Column<'r>)> {
        let mut columns = self.relation.columns().enumerate();
        let (index, column) = columns.find(|(_, column)| column.name == name)?;
        let known = self.needed.iter().position(|needed| *needed == index);
        let slot = known.unwrap_or_else(|| {
            self.needed.push(index);
            self.needed.len() - 1
        });
        Some((slot, column))
    }

    /// Like [`find`](Self::find); the column must exist.
    pub(crate) fn needed(
        &mut self,
        name: &str,
        role: impl FnOnce() -> Role,
    ) -> Result<(usize, Column<'r>), PlanError> {
        self.find(name).ok_or_else(|| self.missing(name, role()))
    }

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

    pub(crate) fn unsupported(&self, name: &str, type_oid: u32, role: Role) -> PlanError {
        PlanError::UnsupportedType {
            table: self.table.clone(),
            column: name.to_owned(),
            role,
            type_oid,
        }
    }

    pub(crate) fn finish(self) -> Slots {
        let mut order: Vec<(usize, usize)> = self.needed.iter().copied().zip(0..).collect();
        order.sort_unstable();
        let name = |index: &usize| {
            let column = self.relation.columns().nth(*index);
            column.map_or_else(String::new, |column| column.name.to_owned())
        };
        Slots {
            columns: self.relation.columns().count(),
            names: self.needed.iter().map(name).collect(),
            order,
            table: self.table,
        }
    }
}

impl Slots {
    /// Why a row cannot be routed: `fault` is in the value for `role`.
    #[cold]
    pub(crate) fn error(&self, fault: Fault, role: &Role) -> RouteError {
        RouteError::Value {
            table: self.table.clone(),
            column: self.names.get(fault.slot).cloned().unwrap_or_default(),
            role: role.clone(),
            why: fault.why,
        }
    }

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
}
