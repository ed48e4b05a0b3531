//! JSON: finds a value by its path, reads and writes strings, and parses a [`tree`].
//!
//! [`find`] reads a text once and allocates nothing. Text that is not JSON by RFC 8259 is refused,
//! so that records embed only JSON.

mod members;
mod scanner;
mod strings;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

pub(crate) use members::{each_member, unquote};
pub(crate) use scanner::{MAX_DEPTH, Step, find, is_json, is_number};
pub(crate) use strings::{short_escape, string, unescape};
