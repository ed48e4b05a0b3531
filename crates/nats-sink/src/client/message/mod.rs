//! A record as a message with headers.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use walrelay_sink::{Header, Poison, Record, RecordKind, dlq_headers};

/// The id by which a stream drops repeats.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";
pub(super) const POSITION: &str = "walrelay.position";
pub(super) const KEY: &str = "walrelay.key";
pub(super) const NULL: &str = "walrelay.null";
pub(super) const TIMESTAMP: &str = "walrelay.timestamp";
/// The system, timeline and slot that a position is of.
pub(super) const SOURCE: &str = "walrelay.source";
/// The subject that an event with an id was published to: its stream, or the account, may map it.
pub(super) const SUBJECT: &str = "walrelay.subject";
/// The list of a dead letter's headers, of its event and of the relay, in their order. Each item is
/// `+N` for the next N lines, whose values are percent-encoded with their `%`, or a header that can be
/// no line: `NAME:VALUE`, or `NAME!` if the value is null, in base64.
pub(super) const HEADERS: &str = "walrelay.dlq.headers";
/// The headers that a stream checks before it stores a message.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
const EXPECTED_SEQUENCE: &str = "Nats-Expected-Last-Sequence";
const EXPECTED_ID: &str = "Nats-Expected-Last-Msg-Id";
/// The prefix of the id of a dead letter: it must not be that of its event, which may be sent
/// again later and would then count as a repeat.
pub(super) const DEAD_LETTER_ID: &str = "dead-letter/";

/// The most bytes of a subject. A server takes control lines of 4096 bytes by default, which have the
/// subject of the answer too.
const MAX_SUBJECT: usize = 3_500;
/// The most bytes of headers that a stream accepts.
const MAX_HEADERS: usize = 65_535;
/// The bytes of headers that a dead letter leaves for its source.
const ROOM: usize = 512;

/// Checks that a text can be the subject of a message, and means nothing to the server. Returns the
/// reason why not, without the text.
pub(crate) fn check_subject(subject: &str) -> Result<(), &'static str> {
    let is_wrong = |c: char| matches!(c, '*' | '>') || c.is_whitespace() || c.is_control();
    if subject.is_empty() {
        Err("the subject is empty")
    } else if subject.len() > MAX_SUBJECT {
        Err("the subject has more than 3500 bytes")
    } else if subject.contains(is_wrong) {
        Err("the subject has a wildcard (* or >), a blank or a control character")
    } else if subject.split('.').any(str::is_empty) {
        Err("the subject has an empty token")
    } else if subject.starts_with('$') || subject.starts_with("_INBOX.") {
        Err("the subject is one of the server ($…) or of answers (_INBOX)")
    } else {
        Ok(())
    }
}

/// Checks what a message can carry. `max_message`: the most bytes of headers and payload. Returns the
/// bytes that count for the limit, or the class of the poison and the reason.
pub(crate) fn check(record: &Record<'_>, max_message: u64) -> Result<u64, (Poison, String)> {
    check_subject(record.topic).map_err(|why| (Poison::Unroutable, why.to_owned()))?;
    if !is_dead_letter(record) && !record.headers.iter().all(|header| is_name(header.name)) {
        // The name may be a value of the row.
        let why = "a header has a name that NATS does not allow or uses itself (Nats-…)";
        return Err((Poison::Rejected, why.to_owned()));
    }
    let mut names = record.headers.iter().map(|header| header.name);
    if record.kind == RecordKind::Event && names.any(|name| name.starts_with(dlq_headers::PREFIX)) {
        // Who reads the stream would take the event for a dead letter.
        let why = "a header has a name of dead letters (walrelay.dlq.…)";
        return Err((Poison::Rejected, why.to_owned()));
    }
    let headers = headers(record).len();
    // A dead letter has more headers than its event, and what cannot be written stops the relay. The
    // server's `max_payload` holds for it, too.
    let allowance = if is_dead_letter(record) {
        MAX_HEADERS as u64
    } else {
        0
    };
    let limit = max_message.saturating_add(allowance);
    check_size(record, headers, limit, "max_message_size")
}

/// Checks the size of a message with so many bytes of headers, and returns it.
pub(crate) fn check_size(
    record: &Record<'_>,
    headers: usize,
    limit: u64,
    name: &str,
) -> Result<u64, (Poison, String)> {
    if headers > MAX_HEADERS {
        let why = format!("the headers have {headers} bytes, a stream accepts {MAX_HEADERS}");
        return Err((Poison::Oversize, why));
    }
    let size = (headers + record.value.map_or(0, <[u8]>::len)) as u64;
    if size > limit {
        let why = format!("the message has {size} bytes, {name} is {limit}");
        return Err((Poison::Oversize, why));
    }
    Ok(size)
}

/// Returns true if an event's header may have this name. Those of NATS change what a stream does with
/// a message, and those of the relay say what it is.
fn is_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b':')
        && !lower.starts_with("nats-")
        && ![POSITION, KEY, NULL, TIMESTAMP, SOURCE, SUBJECT, HEADERS].contains(&&*lower)
}

/// Returns true if a record is a dead letter.
pub(crate) fn is_dead_letter(record: &Record<'_>) -> bool {
    record.kind == RecordKind::DeadLetter
}

/// Returns the value of the relay's header of this name, which is the last one.
fn relay_header<'r>(record: &Record<'r>, name: &str) -> &'r [u8] {
    let mut headers = record.headers.iter().rev();
    let header = headers.find(|header| header.name == name);
    header.and_then(|header| header.value).unwrap_or_default()
}

/// Writes the origin of a dead letter: ids of events are unique in the stream of the events, and dead letters of all
/// slots, clusters and tables may be in one.
fn put_origin(out: &mut Vec<u8>, record: &Record<'_>) {
    escape(out, relay_header(record, dlq_headers::SLOT), true);
    let system = relay_header(record, dlq_headers::SYSTEM);
    if !system.is_empty() {
        // A reader counts the slashes.
        out.push(b'.');
        escape(out, system, true);
    }
    // Writing to a Vec does not fail.
    let _ = write!(out, "/{}/", record.position);
}

/// Makes the block of headers.
///
/// A resolution has no id: with that of its event, or of an earlier resolution that was deleted, the
/// stream would drop it as a repeat, and the dead letter would stay open. Two of them resolve what one
/// does.
pub(crate) fn headers(record: &Record<'_>) -> Vec<u8> {
    let is_dead_letter = is_dead_letter(record);
    let block = block(record, is_dead_letter);
    if is_dead_letter && block.len() > MAX_HEADERS - ROOM {
        // What cannot be written stops the relay; one that is not exact stays open.
        return self::block(record, false);
    }
    block
}

/// Makes the block of headers; `is_exact`: so that the headers of the record can be restored.
fn block(record: &Record<'_>, is_exact: bool) -> Vec<u8> {
    let mut out = b"NATS/1.0\r\n".to_vec();
    let is_dead_letter = is_dead_letter(record);
    let id = record.event_id.unwrap_or_default();
    if is_dead_letter || !id.is_empty() && record.kind != RecordKind::Resolution {
        put(&mut out, MESSAGE_ID, |out| {
            if is_dead_letter {
                out.extend_from_slice(DEAD_LETTER_ID.as_bytes());
                put_origin(out, record);
            }
            escape(out, id, true);
        });
    }
    put(&mut out, POSITION, |out| {
        out.extend_from_slice(record.position.to_string().as_bytes());
    });
    if record.kind == RecordKind::Event && !id.is_empty() {
        put(&mut out, SUBJECT, |out| {
            out.extend_from_slice(record.topic.as_bytes());
        });
    }
    if let Some(key) = record.key {
        put(&mut out, KEY, |out| escape(out, key, true));
    }
    if record.value.is_none() {
        put(&mut out, NULL, |out| out.extend_from_slice(b"true"));
    }
    if let Some(millis) = record.timestamp_ms {
        put(&mut out, TIMESTAMP, |out| {
            out.extend_from_slice(millis.to_string().as_bytes());
        });
    }
    if is_exact {
        put(&mut out, HEADERS, |out| put_list(out, record.headers));
    }
    for header in record.headers {
        if let Some(value) = line_of(header) {
            // What is read back must be what was written.
            put(&mut out, header.name, |out| {
                escape(out, value, is_exact);
            });
        }
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// Returns the value of a header that can be a line.
fn line_of<'r>(header: &Header<'r>) -> Option<&'r [u8]> {
    header.value.filter(|_| is_name(header.name))
}

/// Writes the list of a dead letter's headers: [`HEADERS`].
fn put_list(out: &mut Vec<u8>, headers: &[Header<'_>]) {
    let mut rest = headers;
    let mut gap = "";
    while let Some((first, others)) = rest.split_first() {
        out.extend_from_slice(gap.as_bytes());
        gap = " ";
        let is_line = |header: &&Header<'_>| line_of(header).is_some();
        let lines = rest.iter().take_while(is_line).count();
        if lines > 0 {
            out.extend_from_slice(format!("+{lines}").as_bytes());
            rest = rest.get(lines..).unwrap_or_default();
            continue;
        }
        out.extend_from_slice(URL_SAFE_NO_PAD.encode(first.name).as_bytes());
        match first.value {
            Some(value) => {
                out.push(b':');
                out.extend_from_slice(URL_SAFE_NO_PAD.encode(value).as_bytes());
            }
            None => out.push(b'!'),
        }
        rest = others;
    }
}

/// The message of a stream that the next one must follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Predecessor<'a> {
    pub(crate) stream: &'a str,
    /// The number of the predecessor; 0: the stream has never had a message.
    pub(crate) seq: u64,
    /// The id of the predecessor, if it is a message that was sent just before.
    pub(crate) id: Option<&'a [u8]>,
}

/// Adds the source of a message, and its predecessor: a stream refuses the message if another one is
/// the last.
pub(crate) fn put_predecessor(
    headers: &mut Vec<u8>,
    source: Option<&str>,
    predecessor: Option<Predecessor<'_>>,
) {
    headers.truncate(headers.len().saturating_sub(2));
    if let Some(source) = source {
        put(headers, SOURCE, |out| {
            out.extend_from_slice(source.as_bytes());
        });
    }
    if let Some(Predecessor { stream, seq, id }) = predecessor {
        put(headers, EXPECTED_STREAM, |out| {
            out.extend_from_slice(stream.as_bytes());
        });
        put(headers, EXPECTED_SEQUENCE, |out| {
            out.extend_from_slice(seq.to_string().as_bytes());
        });
        if let Some(id) = id {
            put(headers, EXPECTED_ID, |out| out.extend_from_slice(id));
        }
    }
    headers.extend_from_slice(b"\r\n");
}

/// Returns the id in the headers of a message.
pub(crate) fn message_id(headers: &[u8]) -> Option<&[u8]> {
    line(headers, MESSAGE_ID)
}

/// Finds the value of a header.
pub(super) fn line<'h>(headers: &'h [u8], name: &str) -> Option<&'h [u8]> {
    let mut lines = headers.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b": ")?;
        Some(value.strip_suffix(b"\r").unwrap_or(value))
    })
}

fn put(out: &mut Vec<u8>, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    value(out);
    out.extend_from_slice(b"\r\n");
}

/// Writes bytes as the value of a header, in which control characters, bytes that are no UTF-8, and
/// blanks at either end are percent-encoded. `whole`: so is `%`, and two values never become one.
fn escape(out: &mut Vec<u8>, bytes: &[u8], whole: bool) {
    let start = bytes.len() - bytes.trim_ascii_start().len();
    let end = bytes.trim_ascii_end().len();
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        let text = chunk.valid().bytes().map(|byte| (byte, true));
        let rest = chunk.invalid().iter().map(|byte| (*byte, false));
        for (byte, is_text) in text.chain(rest) {
            let is_inner = (start..end).contains(&at);
            let plain = is_text && is_inner && !byte.is_ascii_control();
            if plain && !(whole && byte == b'%') {
                out.push(byte);
            } else {
                // Writing to a Vec does not fail.
                let _ = write!(out, "%{byte:02X}");
            }
            at += 1;
        }
    }
}

/// Appends a message with these headers.
pub(crate) fn put_message(out: &mut Vec<u8>, record: &Record<'_>, reply: &str, headers: &[u8]) {
    let value = record.value.unwrap_or_default();
    let line = format!(
        "HPUB {} {reply} {} {}\r\n",
        record.topic,
        headers.len(),
        headers.len() + value.len()
    );
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(headers);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a request without headers.
pub(crate) fn put_request(out: &mut Vec<u8>, subject: &str, reply: &str, body: &[u8]) {
    let line = format!("PUB {subject} {reply} {}\r\n", body.len());
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
