use crate::fault::{Fault, Field};
use crate::message::MessageKind;

/// The reason why a body is not a message of pgoutput's protocol version 1.
///
/// A relay stops on it: the bytes may have been a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body is empty.
    #[error("empty pgoutput message")]
    Empty,
    /// The first byte is no tag of protocol version 1. Later versions have more (`S`, `E`, `c`, `A`
    /// for streamed transactions, `b`, `P`, `K`, `r`, `p` for prepared ones). A server sends those
    /// only when asked for such a version.
    #[error(
        "unknown pgoutput message: tag {:?} (0x{tag:02X}) at byte 0 is not of protocol version 1",
        char::from(*tag)
    )]
    UnknownMessage {
        /// The byte found.
        tag: u8,
    },
    /// The body is not a valid message of its tag.
    #[error("malformed pgoutput {message} message: {field} at byte {offset}: {fault}")]
    Malformed {
        /// The kind of message by the tag.
        message: MessageKind,
        /// The invalid field.
        field: Field,
        /// Offset of the fault in bytes from the start of the body; never beyond its end.
        offset: usize,
        /// The field's fault.
        fault: Fault,
    },
}
