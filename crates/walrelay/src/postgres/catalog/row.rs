//! Columns of a catalog row as values.

use std::str::FromStr;

use serde::de::DeserializeOwned;
use walrelay_walsender::Row;

/// NULL is an empty text.
pub(super) fn text(row: &Row<'_>, column: &str) -> String {
    row.get(column).unwrap_or_default().to_owned()
}

pub(super) fn is_true(row: &Row<'_>, column: &str) -> bool {
    row.get(column) == Some("t")
}

/// `None` for NULL, and for what is no `T`.
pub(super) fn parsed<T: FromStr>(row: &Row<'_>, column: &str) -> Option<T> {
    row.get(column)?.parse().ok()
}

/// Arrays are queried as JSON: an array literal of names has its own quoting.
pub(super) fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> Option<T> {
    serde_json::from_str(row.get(column)?).ok()
}
