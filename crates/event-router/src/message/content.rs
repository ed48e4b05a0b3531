//! Parses the content of a logical message: its members and their values.

use std::borrow::Cow;
use std::str;

use serde_json::value::RawValue;

use super::{MessageError, MessageMember};
use crate::headers::HeaderBuffer;
use crate::value::json::{each_member, unquote};

/// The JSON of each member, by [`MessageMember`]; `None` if the member is missing or null.
pub(super) struct Content<'a> {
    raw: [Option<&'a RawValue>; MessageMember::ALL.len()],
}

impl<'a> Content<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let text = str::from_utf8(bytes).map_err(|error| MessageError::NotUtf8 {
            at: error.valid_up_to(),
        })?;
        let mut raw = [None; MessageMember::ALL.len()];
        let mut seen = [false; MessageMember::ALL.len()];
        let mut fault = None;
        // A fault does not end the parsing, as text that is not JSON has priority.
        let read = each_member(text, |name, value| {
            let known = |member: &MessageMember| member.name() == name;
            let Some(member) = MessageMember::ALL.into_iter().find(known) else {
                fault.get_or_insert(MessageError::UnknownMember);
                return;
            };
            if std::mem::replace(&mut seen[member as usize], true) {
                fault.get_or_insert(MessageError::Twice { member });
            }
            raw[member as usize] = value;
        });
        read.map_err(|error| MessageError::NotJson {
            line: error.line(),
            column: error.column(),
        })?;
        fault.map_or(Ok(Self { raw }), Err)
    }

    /// Reads the value of a member. Payload and headers are JSON; other members are strings, or
    /// integers, whose text is their digits.
    pub(super) fn value(
        &self,
        member: MessageMember,
    ) -> Result<Option<Cow<'a, str>>, MessageError> {
        let Some(raw) = self.raw[member as usize].map(RawValue::get) else {
            return Ok(None);
        };
        if matches!(member, MessageMember::Payload | MessageMember::Headers) || is_whole_number(raw)
        {
            return Ok(Some(Cow::Borrowed(raw)));
        }
        unquote(raw).map(Some).ok_or(MessageError::Kind {
            member,
            wanted: "a string or a whole number",
        })
    }
}

fn is_whole_number(raw: &str) -> bool {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads the headers: an object of strings, numbers, booleans and nulls.
pub(super) fn read_headers(
    headers: Option<&str>,
    buffer: &mut HeaderBuffer,
) -> Result<(), MessageError> {
    buffer.clear();
    let Some(headers) = headers else {
        return Ok(());
    };
    let mut all = true;
    let read = each_member(headers, |name, raw| {
        let value = raw.map(|raw| header_value(raw.get()));
        all &= value != Some(None);
        buffer.push(&name, value.flatten().as_deref());
    });
    match read {
        Ok(()) if all => Ok(()),
        _ => Err(MessageError::Kind {
            member: MessageMember::Headers,
            wanted: "an object of strings, numbers, booleans and nulls",
        }),
    }
}

/// Reads the text of a string; a number or boolean as written. `None` for objects and arrays.
fn header_value(raw: &str) -> Option<Cow<'_, str>> {
    match raw.bytes().next()? {
        b'{' | b'[' => None,
        b'"' => unquote(raw),
        _ => Some(Cow::Borrowed(raw)),
    }
}
