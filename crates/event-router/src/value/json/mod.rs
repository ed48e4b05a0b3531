//! JSON: finding a member of a text, reading strings, writing strings, and a [`tree`].
//!
//! Finding walks over a text once and allocates nothing. It refuses text that is not JSON by RFC 8259,
//! so that records embed only JSON.

mod scanner;
mod strings;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

pub(crate) use scanner::{MAX_DEPTH, Step, find, is_json, is_number};
pub(crate) use strings::{short_escape, string, unescape};
