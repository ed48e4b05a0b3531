//! Framing: messages as pure functions over bytes ([`parse_frame`]), the read buffer, and the
//! socket with both.

pub(crate) mod buffer;
pub(crate) mod messages;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use messages::{Frame, MAX_MESSAGE, StatusUpdate, parse_frame};
