//! The text protocol of NATS: what a server sends.

use super::error::ProtocolError;

/// The longest control line. `INFO` has the URLs of a whole cluster.
const MAX_LINE: usize = 1 << 20;
/// The most bytes of a message to the client. The relay receives acknowledgements, and single
/// messages of a stream, which the server's `max_payload` bounds to 64 MiB, in base64.
const MAX_MESSAGE: usize = 128 << 20;

/// An operation of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    /// `INFO`: a JSON object.
    Info(&'a [u8]),
    /// `MSG` or `HMSG`.
    Message {
        subject: &'a [u8],
        /// The status of the header block, such as 503.
        status: Option<u16>,
        payload: &'a [u8],
    },
    Ping,
    Pong,
    /// `+OK`
    Ok,
    /// `-ERR` with its text, without quotes.
    Error(&'a [u8]),
}

/// Decodes the first operation and returns it with its length; `None` if the bytes end before it does.
pub(crate) fn decode(input: &[u8]) -> Result<Option<(Operation<'_>, usize)>, ProtocolError> {
    let head = input.get(..input.len().min(MAX_LINE)).unwrap_or_default();
    let Some(end) = head.iter().position(|byte| *byte == b'\n') else {
        if input.len() >= MAX_LINE {
            return Err(ProtocolError("a line without an end"));
        }
        return Ok(None);
    };
    let line = input.get(..end).unwrap_or_default().trim_ascii_end();
    let next = end + 1;
    let at = line.iter().position(u8::is_ascii_whitespace);
    let (name, rest) = line.split_at(at.unwrap_or(line.len()));
    let rest = rest.trim_ascii();
    let operation = match name.to_ascii_uppercase().as_slice() {
        b"MSG" => return message(input, next, rest, false),
        b"HMSG" => return message(input, next, rest, true),
        b"INFO" => Operation::Info(rest),
        b"PING" => Operation::Ping,
        b"PONG" => Operation::Pong,
        b"+OK" => Operation::Ok,
        b"-ERR" => {
            let text = rest.strip_prefix(b"'").unwrap_or(rest);
            Operation::Error(text.strip_suffix(b"'").unwrap_or(text))
        }
        _ => return Err(ProtocolError("an operation that NATS does not have")),
    };
    Ok(Some((operation, next)))
}

/// Decodes `SUBJECT SID [REPLY] [HEADER BYTES] TOTAL BYTES`, and the bytes that follow.
fn message<'a>(
    input: &'a [u8],
    start: usize,
    arguments: &'a [u8],
    has_headers: bool,
) -> Result<Option<(Operation<'a>, usize)>, ProtocolError> {
    let wrong = ProtocolError("a message without its lengths");
    let words: Vec<&[u8]> = arguments
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .collect();
    let (subject, lengths) = match (&*words, has_headers) {
        ([subject, _, total] | [subject, _, _, total], false) => (*subject, (&b"0"[..], *total)),
        ([subject, _, headers, total] | [subject, _, _, headers, total], true) => {
            (*subject, (*headers, *total))
        }
        _ => return Err(wrong),
    };
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<usize>().ok();
    let headers = number(lengths.0).ok_or(wrong)?;
    let total = number(lengths.1).ok_or(wrong)?;
    if headers > total || total > MAX_MESSAGE {
        return Err(wrong);
    }
    let end = start + total;
    let Some(body) = input.get(start..end) else {
        return Ok(None);
    };
    match input.get(end..end + 2) {
        Some(b"\r\n") => {}
        Some(_) => return Err(ProtocolError("a message that is longer than it says")),
        None => return Ok(None),
    }
    let (headers, payload) = body.split_at(headers);
    let operation = Operation::Message {
        subject,
        status: status(headers),
        payload,
    };
    Ok(Some((operation, end + 2)))
}

/// Returns the status in the first line of a header block, `NATS/1.0 503 …`.
fn status(headers: &[u8]) -> Option<u16> {
    let line = headers.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    line.strip_prefix("NATS/")?
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(input: &[u8]) -> Vec<String> {
        let (mut at, mut found) = (0, Vec::new());
        while let Some((operation, length)) = decode(&input[at..]).unwrap() {
            found.push(format!("{operation:?}"));
            at += length;
        }
        found
    }

    const STREAM: &[u8] = b"INFO {\"max_payload\":1}\r\nPING\r\n+OK\r\n-ERR 'Stale Connection'\r\n\
        MSG a.b 1 2\r\nhi\r\nmsg a.b 1 reply 0\r\n\r\n\
        HMSG a.b 1 16 18\r\nNATS/1.0 503\r\n\r\nhi\r\nHMSG a 1 r 12 12\r\nNATS/1.0\r\n\r\n\r\nPONG\r\n";

    #[test]
    fn operations_are_decoded() {
        let found = all(STREAM);
        assert_eq!(found.len(), 9, "{found:?}");
        let (operation, _) = decode(b"HMSG a.b 1 16 18\r\nNATS/1.0 503\r\n\r\nhi\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(
            operation,
            Operation::Message {
                subject: b"a.b",
                status: Some(503),
                payload: b"hi"
            }
        );
        let (operation, _) = decode(b"-ERR 'Stale Connection'\r\n").unwrap().unwrap();
        assert_eq!(operation, Operation::Error(b"Stale Connection"));
    }

    #[test]
    fn every_beginning_waits_for_more_bytes() {
        for end in 0..STREAM.len() {
            let mut rest = &STREAM[..end];
            while let Some((_, length)) = decode(rest).unwrap() {
                rest = &rest[length..];
            }
        }
    }

    #[test]
    fn what_is_no_operation_is_refused() {
        for wrong in [
            &b"HTTP/1.1 400\r\n"[..],
            b"\r\n",
            b"MSG\r\n",
            b"MSG a 1 x\r\n",
            b"MSG a 1 -1\r\n",
            b"MSG a 1 99999999999999999999999\r\n",
            b"MSG a 1 999999999999\r\n",
            b"HMSG a 1 3 2\r\nxx\r\n",
            b"MSG a 1 1\r\nxyz\r\n",
        ] {
            decode(wrong).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            for begin in [&b"MSG a 1 "[..], b"HMSG a 1 12 ", b"INFO ", b"-ERR "] {
                let _ = decode(&[begin, &bytes].concat());
            }
        }
    }
}
