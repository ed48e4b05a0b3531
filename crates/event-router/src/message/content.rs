//! Parses the content of a logical message: its members and their values.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::str;

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{MessageError, MessageMember};

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

/// Calls `each` with the name and value of each member of a JSON object; a null value is `None`.
fn each_member<'a>(
    text: &'a str,
    each: impl FnMut(Cow<'a, str>, Option<&'a RawValue>),
) -> serde_json::Result<()> {
    /// A name, borrowed if possible: serde never borrows a bare `Cow`.
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

    struct Members<F>(F);

    impl<'de, F: FnMut(Cow<'de, str>, Option<&'de RawValue>)> Visitor<'de> for Members<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            let Self(mut each) = self;
            while let Some((Key(name), value)) = map.next_entry()? {
                each(name, value);
            }
            Ok(())
        }
    }

    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.deserialize_map(Members(each))?;
    deserializer.end()
}

/// Reads the text of a JSON string, borrowed if it has no escape. `None` if the JSON is not a
/// string.
fn unquote(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        // Half of a surrogate pair is allowed in JSON, but not in UTF-8: an error.
        serde_json::from_str(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

fn is_whole_number(raw: &str) -> bool {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The headers of the last message, in one buffer.
#[derive(Clone, Default)]
pub(super) struct HeaderBuffer {
    pub(super) texts: String,
    pub(super) places: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl HeaderBuffer {
    /// Reads an object of strings, numbers, booleans and nulls.
    pub(super) fn read(&mut self, headers: Option<&str>) -> Result<(), MessageError> {
        self.texts.clear();
        self.places.clear();
        let Some(headers) = headers else {
            return Ok(());
        };
        let mut all = true;
        let read = each_member(headers, |name, raw| {
            let value = raw.map(|raw| header_value(raw.get()));
            all &= value != Some(None);
            let name = self.push(&name);
            let value = value.flatten().map(|value| self.push(&value));
            self.places.push((name, value));
        });
        match read {
            Ok(()) if all => Ok(()),
            _ => Err(MessageError::Kind {
                member: MessageMember::Headers,
                wanted: "an object of strings, numbers, booleans and nulls",
            }),
        }
    }

    fn push(&mut self, text: &str) -> Range<usize> {
        let start = self.texts.len();
        self.texts.push_str(text);
        start..self.texts.len()
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
