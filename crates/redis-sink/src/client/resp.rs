//! RESP2: commands out, replies in.

use super::error::ProtocolError;

/// The longest line: that of an error, a status or a length.
const MAX_LINE: usize = 64 << 10;
/// The largest string in bytes, as Redis has it (`proto-max-bulk-len`).
const MAX_STRING: usize = 512 << 20;
/// The most members of an array.
const MAX_MEMBERS: usize = 1 << 20;
/// The deepest nesting: `EXEC`, a list of entries, an entry, its fields.
const MAX_DEPTH: usize = 8;

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A status, such as `OK`.
    Status(Vec<u8>),
    /// An error. Its text may quote arguments of the command.
    Error(Vec<u8>),
    Integer(i64),
    /// A string; `None` is null.
    String(Option<Vec<u8>>),
    /// An array; `None` is null.
    Array(Option<Vec<Reply>>),
}

/// Decodes the first reply of `bytes` and returns it with its length; `None` if it is not there as a
/// whole.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ProtocolError> {
    let mut reader = Reader { bytes, at: 0 };
    Ok(reader.reply(0)?.map(|reply| (reply, reader.at)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn reply(&mut self, depth: usize) -> Result<Option<Reply>, ProtocolError> {
        let Some(line) = self.line()? else {
            return Ok(None);
        };
        let Some((kind, text)) = line.split_first() else {
            return Err(ProtocolError("an empty line"));
        };
        Ok(Some(match kind {
            b'+' => Reply::Status(text.to_vec()),
            b'-' => Reply::Error(text.to_vec()),
            b':' => Reply::Integer(number(text)?),
            b'$' => match length(text, MAX_STRING)? {
                None => Reply::String(None),
                Some(length) => {
                    let Some(string) = self.string(length)? else {
                        return Ok(None);
                    };
                    Reply::String(Some(string.to_vec()))
                }
            },
            b'*' => match length(text, MAX_MEMBERS)? {
                None => Reply::Array(None),
                Some(_) if depth == MAX_DEPTH => {
                    return Err(ProtocolError("arrays that are nested too deeply"));
                }
                Some(length) => {
                    // Not allocated before the members are there.
                    let mut members = Vec::new();
                    for _ in 0..length {
                        match self.reply(depth + 1)? {
                            Some(member) => members.push(member),
                            None => return Ok(None),
                        }
                    }
                    Reply::Array(Some(members))
                }
            },
            _ => return Err(ProtocolError("no reply of RESP2")),
        }))
    }

    /// Takes a line without its end.
    fn line(&mut self) -> Result<Option<&'a [u8]>, ProtocolError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(end) = rest
            .windows(2)
            .take(MAX_LINE)
            .position(|bytes| bytes == b"\r\n")
        else {
            return if rest.len() > MAX_LINE {
                Err(ProtocolError("a line that is too long"))
            } else {
                Ok(None)
            };
        };
        self.at += end + 2;
        Ok(rest.get(..end))
    }

    fn string(&mut self, length: usize) -> Result<Option<&'a [u8]>, ProtocolError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(end) = rest.get(length..length + 2) else {
            return Ok(None);
        };
        if end != b"\r\n" {
            return Err(ProtocolError("a string with another length"));
        }
        self.at += length + 2;
        Ok(rest.get(..length))
    }
}

fn number(text: &[u8]) -> Result<i64, ProtocolError> {
    let text = std::str::from_utf8(text).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or(ProtocolError("an integer that is none"))
}

/// Parses a length; `None` is that of null.
fn length(text: &[u8], most: usize) -> Result<Option<usize>, ProtocolError> {
    let number = number(text)?;
    if number == -1 {
        return Ok(None);
    }
    let length = usize::try_from(number)
        .ok()
        .filter(|number| *number <= most);
    length
        .map(Some)
        .ok_or(ProtocolError("a length that is out of bounds"))
}

/// Appends a command: an array of strings.
pub(crate) fn put_command<A: AsRef<[u8]>>(out: &mut Vec<u8>, arguments: &[A]) {
    put_count(out, arguments.len());
    for argument in arguments {
        put_string(out, argument.as_ref());
    }
}

/// Appends the beginning of a command with so many arguments.
pub(crate) fn put_count(out: &mut Vec<u8>, arguments: usize) {
    put_line(out, b'*', arguments);
}

/// Appends an argument.
pub(crate) fn put_string(out: &mut Vec<u8>, argument: &[u8]) {
    put_line(out, b'$', argument.len());
    out.extend_from_slice(argument);
    out.extend_from_slice(b"\r\n");
}

fn put_line(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(number.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(reply: &Reply, out: &mut Vec<u8>) {
        match reply {
            Reply::Status(text) | Reply::Error(text) => {
                let is_status = matches!(reply, Reply::Status(_));
                out.push(if is_status { b'+' } else { b'-' });
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Integer(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Reply::String(None) => out.extend_from_slice(b"$-1\r\n"),
            Reply::String(Some(text)) => put_string(out, text),
            Reply::Array(None) => out.extend_from_slice(b"*-1\r\n"),
            Reply::Array(Some(members)) => {
                put_count(out, members.len());
                for member in members {
                    encode(member, out);
                }
            }
        }
    }

    fn replies() -> impl Strategy<Value = Reply> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        let leaf = prop_oneof![
            "[ -~]{0,20}".prop_map(|text| Reply::Status(text.into_bytes())),
            "[ -~]{0,20}".prop_map(|text| Reply::Error(text.into_bytes())),
            any::<i64>().prop_map(Reply::Integer),
            proptest::option::of(bytes()).prop_map(Reply::String),
            Just(Reply::Array(None)),
        ];
        leaf.prop_recursive(4, 32, 6, |member| {
            proptest::collection::vec(member, 0..6).prop_map(|it| Reply::Array(Some(it)))
        })
    }

    proptest! {
        #[test]
        fn a_reply_is_decoded_back_and_no_part_of_it_is_one(reply in replies(), cut: prop::sample::Index) {
            let mut bytes = Vec::new();
            encode(&reply, &mut bytes);
            let whole = bytes.len();
            prop_assert_eq!(decode(&bytes[..cut.index(whole)]), Ok(None));
            bytes.extend_from_slice(b"+behind\r\n");
            prop_assert_eq!(decode(&bytes), Ok(Some((reply, whole))));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in "[+$*:0-9a\r\n-]{0,60}") {
            let _ = decode(bytes.as_bytes());
        }
    }

    #[test]
    fn wrong_replies_are_refused() {
        for wrong in [
            &b"\r\n"[..],
            b"!\r\n",
            b":x\r\n",
            b"$-2\r\n",
            b"$536870913\r\n",
            b"*1048577\r\n",
            b"$1\r\nabc",
        ] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
        assert!(decode(&b"*1\r\n".repeat(20)).is_err(), "nested");
        assert!(decode(&vec![b'+'; MAX_LINE + 2]).is_err(), "a long line");
        assert_eq!(
            decode(b"*1000000\r\n"),
            Ok(None),
            "nothing is allocated for it"
        );
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        let mut out = Vec::new();
        put_command(&mut out, &[&b"GET"[..], b"a\r\n"]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n");
    }
}
