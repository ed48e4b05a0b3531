use std::fmt;

use crate::error::Error;

/// The rows of a statement, as text.
///
/// `Debug` shows the columns and the number of rows, never a value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Rows {
    columns: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
}

impl Rows {
    /// Returns the names of the columns; empty if no statement returned rows.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the first row.
    pub fn first(&self) -> Option<Row<'_>> {
        self.iter().next()
    }

    /// Returns the rows in the order in which they were received.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Row<'_>> {
        self.rows.iter().map(|values| Row {
            columns: &self.columns,
            values,
        })
    }

    /// Begins the rows of another statement, and drops those before.
    pub(super) fn begin(&mut self, columns: Vec<String>) {
        self.columns = columns;
        self.rows.clear();
    }

    pub(super) fn push(&mut self, row: Vec<Option<String>>) -> Result<(), Error> {
        if row.len() != self.columns.len() {
            return Err(Error::protocol(format!(
                "a row of {} values under {} columns",
                row.len(),
                self.columns.len()
            )));
        }
        self.rows.push(row);
        Ok(())
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("columns", &self.columns)
            .field("rows", &self.rows.len())
            .finish()
    }
}

/// One row.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    columns: &'a [String],
    values: &'a [Option<String>],
}

impl<'a> Row<'a> {
    /// Returns a value by the column's number, from 0, or its name. `None` for NULL and for a
    /// column that does not exist. Of several columns with one name the first is used.
    pub fn get(&self, column: impl ColumnIndex) -> Option<&'a str> {
        self.values.get(column.find(self.columns)?)?.as_deref()
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

/// A column by number or name.
pub trait ColumnIndex {
    /// Finds the column's number.
    #[doc(hidden)]
    fn find(self, columns: &[String]) -> Option<usize>;
}

impl ColumnIndex for usize {
    fn find(self, _columns: &[String]) -> Option<usize> {
        Some(self)
    }
}

impl ColumnIndex for &str {
    fn find(self, columns: &[String]) -> Option<usize> {
        columns.iter().position(|column| column == self)
    }
}
