//! Marks rows as sent, in the column that a polling relay uses (`[source] mark_sent`), by the keys of
//! rows whose records were acknowledged (docs/adr/0054-mark-first-confirm-then.md).

mod cursor;
mod failing;
mod marker;
mod marking;
mod stored;

pub use marker::SentMarker;
pub use marking::Marking;
