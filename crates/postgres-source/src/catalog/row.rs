//! Reads columns of a catalog row as values.

use std::str::FromStr;

use serde::de::DeserializeOwned;
use walrelay_walsender::Row;

/// Returns the column's text; empty for NULL.
pub(crate) fn text(row: &Row<'_>, column: &str) -> String {
    row.get(column).unwrap_or_default().to_owned()
}

pub(crate) fn is_true(row: &Row<'_>, column: &str) -> bool {
    row.get(column) == Some("t")
}

/// Returns the column parsed as `T`; `None` for NULL and for texts that are no `T`.
pub(crate) fn parsed<T: FromStr>(row: &Row<'_>, column: &str) -> Option<T> {
    row.get(column)?.parse().ok()
}

/// Returns the column parsed as JSON; `None` for NULL. Arrays of names are queried as JSON, because
/// array literals have a quoting of their own.
pub(crate) fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> Option<T> {
    serde_json::from_str(row.get(column)?).ok()
}
