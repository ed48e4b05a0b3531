//! The columns of a table while a plan is compiled for it: found by name, given slots.

use walrelay_pgoutput::{Column, Relation, Tuple, Value};

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

    /// All names, in the table's order. A publication with a column list sends fewer than the table
    /// has.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.relation.columns().map(|column| column.name.to_owned());
        names.collect()
    }

    /// The name somebody may have meant: `aggregate_id` for `aggregateid`.
    pub(crate) fn nearest(&self, wanted: &str) -> Option<String> {
        self.relation
            .columns()
            .map(|column| (strsim::jaro_winkler(wanted, column.name), column.name))
            .filter(|(similarity, _)| *similarity > 0.8)
            .max_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, name)| name.to_owned())
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
