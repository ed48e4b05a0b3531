//! Encodes frames, methods and tables.

use super::{FRAME_END, MAX_SHORT};

/// Appends a method frame, whose arguments `arguments` writes.
pub(crate) fn put_method(
    out: &mut Vec<u8>,
    channel: u16,
    (class, method): (u16, u16),
    arguments: impl FnOnce(&mut Vec<u8>),
) {
    put_frame(out, 1, channel, |out| {
        out.extend_from_slice(&class.to_be_bytes());
        out.extend_from_slice(&method.to_be_bytes());
        arguments(out);
    });
}

/// Appends a frame of this type.
pub(crate) fn put_frame(
    out: &mut Vec<u8>,
    kind: u8,
    channel: u16,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    put_sized(out, payload);
    out.push(FRAME_END);
}

/// Appends a text of at most [`MAX_SHORT`] bytes; the rest of a longer one is cut off.
pub(crate) fn put_short(out: &mut Vec<u8>, text: &[u8]) {
    let text = text.get(..MAX_SHORT).unwrap_or(text);
    out.push(text.len() as u8);
    out.extend_from_slice(text);
}

/// Appends a length of four bytes and what `content` writes: a long string, a table or an array.
pub(crate) fn put_sized(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    content(out);
    let length = (out.len() - start - 4) as u32;
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

/// Appends a member of a table. Text is a string, other bytes are a byte array, `None` is void.
pub(crate) fn put_member(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    put_short(out, name.as_bytes());
    match value {
        None => out.push(b'V'),
        Some(bytes) => {
            out.push(if std::str::from_utf8(bytes).is_ok() {
                b'S'
            } else {
                b'x'
            });
            put_sized(out, |out| out.extend_from_slice(bytes));
        }
    }
}
