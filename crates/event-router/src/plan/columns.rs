//! The columns that a plan needs: found by name and numbered by [`ColumnIndex`].

use std::collections::{BTreeMap, HashMap};

use walrelay_failure::nearest;
use walrelay_lsn::TypeOid;
use walrelay_pgoutput::{Column, Relation, Tuple, Value};

use super::error::{PlanError, RouteError};
use super::role::Role;
use crate::value::{ColumnIndex, Fault};

/// Other names of columns, by the name that the configuration uses. A row from before a column was
/// renamed has the name of then: pgoutput sends names of columns, and no numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnNames(BTreeMap<String, Vec<String>>);

impl ColumnNames {
    /// Adds other names of the column `name`. The first that a table has is used.
    pub fn add(&mut self, name: &str, others: impl IntoIterator<Item = String>) {
        let known = self.0.entry(name.to_owned()).or_default();
        for other in others {
            if other != name && !known.contains(&other) {
                known.push(other);
            }
        }
    }

    /// Returns the names of a column: `name` itself, then the others.
    pub fn names_of<'n>(&'n self, name: &'n str) -> impl Iterator<Item = &'n str> {
        let others = self.0.get(name).into_iter().flatten();
        std::iter::once(name).chain(others.map(String::as_str))
    }
}

/// The columns that a plan needs, collected while it is compiled. A [`ColumnIndex`] counts them in
/// that order.
pub(crate) struct Columns<'r> {
    relation: &'r Relation<'r>,
    names: &'r ColumnNames,
    /// The type below each domain that is known.
    domains: HashMap<TypeOid, TypeOid>,
    /// `schema.table`, for errors.
    table: String,
    /// Position in the table and name of each column, by index.
    needed: Vec<(usize, String)>,
}

/// The columns of a finished plan, and their places in a row.
pub(crate) struct PlanColumns {
    pub(crate) table: String,
    /// Number of columns of the table, and so of each row.
    columns: usize,
    pub(crate) names: Vec<String>,
    /// Position in the row and index of each column, sorted by position, so that a row is read once.
    order: Vec<(usize, ColumnIndex)>,
}

impl<'r> Columns<'r> {
    pub(crate) fn new(
        relation: &'r Relation<'r>,
        names: &'r ColumnNames,
        domains: HashMap<TypeOid, TypeOid>,
    ) -> Self {
        Self {
            relation,
            names,
            domains,
            table: format!("{}.{}", relation.namespace, relation.name),
            needed: Vec::new(),
        }
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// Returns the names of a column, see [`ColumnNames::names_of`].
    pub(crate) fn names<'n>(&self, name: &'n str) -> impl Iterator<Item = &'n str>
    where
        'r: 'n,
    {
        let names: &'r ColumnNames = self.names;
        names.names_of(name)
    }

    /// Finds the first column of this name, or of another name of the same column; returns its index
    /// and the column. A column has one index.
    pub(crate) fn find(&mut self, name: &str) -> Option<(usize, Column<'r>)> {
        let (position, column) = find(self.relation, self.names, name)?;
        let known = self
            .needed
            .iter()
            .position(|(needed, _)| *needed == position);
        let index = known.unwrap_or_else(|| {
            self.needed.push((position, column.name.to_owned()));
            self.needed.len() - 1
        });
        Some((index, column))
    }

    /// Finds a column as [`find`](Self::find) does, but a missing column is an error.
    pub(crate) fn needed(
        &mut self,
        name: &str,
        role: impl FnOnce() -> Role,
    ) -> Result<(usize, Column<'r>), PlanError> {
        self.find(name).ok_or_else(|| self.missing(name, role()))
    }

    /// Returns the type below the domains that a column has; its type, if nothing is known of it.
    pub(crate) fn base_type(&self, column: &Column<'_>) -> TypeOid {
        let type_oid = column.type_oid;
        self.domains.get(&type_oid).copied().unwrap_or(type_oid)
    }

    pub(crate) fn missing(&self, name: &str, role: Role) -> PlanError {
        let names = || self.relation.columns().map(|column| column.name);
        PlanError::MissingColumn {
            table: self.table.clone(),
            column: name.to_owned(),
            role,
            columns: names().map(str::to_owned).collect(),
            nearest: nearest(name, names()).map(str::to_owned),
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

    pub(crate) fn finish(self) -> PlanColumns {
        let (positions, names): (Vec<usize>, Vec<String>) = self.needed.into_iter().unzip();
        let mut order: Vec<(usize, ColumnIndex)> = positions.into_iter().zip(0..).collect();
        order.sort_unstable();
        PlanColumns {
            columns: self.relation.columns().count(),
            names,
            order,
            table: self.table,
        }
    }
}

/// Finds a column of the relation by the first of its names that the relation has; returns its
/// position and the column.
pub(crate) fn find<'r>(
    relation: &Relation<'r>,
    names: &ColumnNames,
    name: &str,
) -> Option<(usize, Column<'r>)> {
    let with = |name: &str| {
        let mut columns = relation.columns().enumerate();
        columns.find(|(_, column)| column.name == name)
    };
    names.names_of(name).find_map(with)
}

impl PlanColumns {
    /// Creates the error of a row whose value for `role` has `fault`.
    #[cold]
    pub(crate) fn error(&self, fault: Fault, role: &Role) -> RouteError {
        RouteError::Value {
            table: self.table.clone(),
            column: self.names.get(fault.index).cloned().unwrap_or_default(),
            role: role.clone(),
            why: fault.why,
        }
    }

    /// Refuses a row that does not have as many columns as the table.
    pub(crate) fn check_count(&self, tuple: &Tuple<'_>) -> Result<(), RouteError> {
        if tuple.len() == self.columns {
            return Ok(());
        }
        Err(RouteError::ColumnCount {
            table: self.table.clone(),
            announced: self.columns,
            found: tuple.len(),
        })
    }

    /// Writes the values of the needed columns of `tuple` to `into`, by index.
    pub(crate) fn values<'t>(&self, tuple: &Tuple<'t>, into: &mut [Value<'t>]) {
        let mut values = tuple.values();
        let mut at = 0;
        for (position, index) in &self.order {
            let value = loop {
                let Some(value) = values.next() else { return };
                at += 1;
                if at > *position {
                    break value;
                }
            };
            if let Some(place) = into.get_mut(*index) {
                *place = value;
            }
        }
    }
}
