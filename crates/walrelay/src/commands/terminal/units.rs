//! Formats byte counts, progress bars, tables and lists.

use std::fmt;

use serde::Serialize;
use walrelay_failure::Failure;
use walrelay_observe::{printable, printable_json};
pub(crate) use walrelay_settings::format_bytes as bytes;

use crate::cli::Output;
use crate::commands::write_failed;

/// Progress towards an estimated number of rows: `[####......]  40 %, 400 of about 1000 rows`.
pub(crate) fn rows_bar(done: u64, expected: u64) -> String {
    if expected == 0 {
        return format!("{done} rows");
    }
    let part = (done as f64 / expected as f64).min(1.0);
    format!("{}, {done} of about {expected} rows", percent_bar(part))
}

/// Returns a part of the whole, 0 to 1, as a bar and a percentage.
pub(crate) fn percent_bar(part: f64) -> String {
    const WIDTH: usize = 24;
    let filled = ((part * WIDTH as f64) as usize).min(WIDTH);
    let (done, left) = ("#".repeat(filled), ".".repeat(WIDTH - filled));
    format!("[{done}{left}] {:3.0} %", part * 100.0)
}

/// The head of a column of a table, and the cell of a row: `-` for `None`.
pub(crate) type Column<T> = (&'static str, fn(&T) -> Option<String>);

/// Returns a list in the output format: a table with these columns, or a JSON object on a line for
/// each row.
///
/// It is one text, to be printed by one write: a reader such as `head` closes the pipe after the
/// first lines, and a second write would fail.
pub(crate) fn list_text<'a, T, J: Serialize>(
    output: Output,
    rows: &'a [T],
    columns: &[Column<T>],
    json: impl Fn(&'a T) -> J,
) -> Result<String, Failure> {
    match output {
        Output::Table => {
            let mut table = Table::new(columns.iter().map(|(head, _)| *head));
            for row in rows {
                table.add(columns.iter().map(|(_, cell)| cell(row)));
            }
            Ok(table.to_string())
        }
        Output::Json => {
            let lines = rows.iter().map(|row| serde_json::to_string(&json(row)));
            let lines =
                lines.map(|line| line.map(|line| printable_json(&line).into_owned() + "\n"));
            let text: serde_json::Result<String> = lines.collect();
            text.map_err(|error| write_failed(error.into()))
        }
    }
}

/// A table with aligned columns, kept in memory until it is written.
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    pub(crate) fn new(heads: impl Iterator<Item = &'static str>) -> Self {
        Self(vec![heads.map(str::to_owned).collect()])
    }

    /// Adds a row: a cell for each head, `-` for `None`.
    pub(crate) fn add(&mut self, cells: impl Iterator<Item = Option<String>>) {
        let cells = cells.map(|cell| printable(cell.as_deref().unwrap_or("-")).into_owned());
        self.0.push(cells.collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.0.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.0 {
            let cells = row.iter().zip(&widths);
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::rows_bar;

    #[test]
    fn bars() {
        for (done, expected, text) in [
            (0, 0, "0 rows"),
            (7, 0, "7 rows"),
            (0, 8, "[........................]   0 %, 0 of about 8 rows"),
            (4, 8, "[############............]  50 %, 4 of about 8 rows"),
            (9, 8, "[########################] 100 %, 9 of about 8 rows"),
        ] {
            assert_eq!(rows_bar(done, expected), text);
        }
    }
}
