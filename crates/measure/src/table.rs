//! Markdown tables.

use std::fmt::Write as _;

/// A column: its heading, and its cell of a row.
pub type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// Renders rows as a table: `"heading" => cell;` for each column. Columns are aligned to the right
/// unless their heading begins with `<`. A heading with bars covers several columns.
#[macro_export]
macro_rules! table {
    ($rows:expr, |$row:ident| $($heading:expr => $cell:expr;)*) => {
        $crate::table::render($rows, &[$(($heading, &|$row| $cell)),*])
    };
}

/// Renders the rows of [`table!`](crate::table!).
pub fn render<T>(rows: &[T], columns: &[Column<'_, T>]) -> String {
    let headings = columns.iter().flat_map(|(heading, _)| heading.split(" | "));
    let headings: Vec<&str> = headings.collect();
    let marks = headings
        .iter()
        .map(|heading| match heading.strip_prefix('<') {
            Some(_) => "---",
            None => "---:",
        });
    let marks = marks.collect::<Vec<_>>().join("|");
    let mut text = format!("| {} |\n|{marks}|\n", headings.join(" | ").replace('<', ""));
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|(_, cell)| cell(row)).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}
