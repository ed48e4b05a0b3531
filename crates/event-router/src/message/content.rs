//! The content form: which members there are, and what each may be.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::str;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{MessageError, MessageMember};

/// The members as they stand in the content. `null` is as if it were not there.
pub(super) struct Content<'a> {
    raw: [Option<&'a RawValue>; MessageMember::ALL.len()],
}

impl<'a> Content<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let text = str::from_utf8(bytes).map_err(|error| MessageError::NotUtf8 {
            at: error.valid_up_to(),
        })?;
        let read: Read<'a> = serde_json::from_str(text).map_err(|error| MessageError::NotJson {
            line: error.line(),
            column: error.column(),
        })?;
        if let Some(fault) = read.fault {
            return Err(fault);
        }
        Ok(read.content)
    }

    pub(super) fn raw(&self, member: MessageMember) -> Option<&'a str> {
        self.raw[member as usize].map(RawValue::get)
    }

    /// A member that is a string, or a whole number taken as its digits.
    pub(super) fn text(&self, member: MessageMember) -> Result<Option<Cow<'a, str>>, MessageError> {
        let Some(raw) = self.raw(member) else {
            return Ok(None);
        };
        match unquote(raw) {
            Some(text) => Ok(Some(text)),
            None if is_whole_number(raw) => Ok(Some(Cow::Borrowed(raw))),
            None => Err(MessageError::Kind {
                member,
                wanted: "a string or a whole number",
            }),
        }
    }
}

/// What was read, and what was wrong with it: the reading goes on to the end, so that text that is
/// no JSON is called so.
struct Read<'a> {
    content: Content<'a>,
    fault: Option<MessageError>,
}

impl<'de> Deserialize<'de> for Read<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Read<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut raw = [None; MessageMember::ALL.len()];
                let mut seen = [false; MessageMember::ALL.len()];
                let mut fault = None;
                while let Some(Key(name)) = map.next_key()? {
                    let known = |member: &MessageMember| member.name() == name;
                    let Some(member) = MessageMember::ALL.into_iter().find(known) else {
                        map.next_value::<IgnoredAny>()?;
                        fault.get_or_insert(MessageError::UnknownMember);
                        continue;
                    };
                    if std::mem::replace(&mut seen[member as usize], true) {
                        fault.get_or_insert(MessageError::Twice { member });
                    }
                    raw[member as usize] = map.next_value::<Option<&'de RawValue>>()?;
                }
                let content = Content { raw };
                Ok(Read { content, fault })
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// The text of a JSON string; borrowed where nothing in it is escaped. `None`: it is no string.
fn unquote(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        // Half of a surrogate pair is a string in JSON and none in UTF-8.
        serde_json::from_str(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

fn is_whole_number(raw: &str) -> bool {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The headers of the message that was read last, in one buffer.
#[derive(Clone, Default)]
pub(super) struct HeaderBuffer {
    pub(super) texts: String,
    /// Name and value.
    pub(super) places: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl HeaderBuffer {
    /// Reads an object of strings, numbers, truth values and nulls.
    pub(super) fn read(&mut self, content: &Content<'_>) -> Result<(), MessageError> {
        self.texts.clear();
        self.places.clear();
        let member = MessageMember::Headers;
        let Some(raw) = content.raw(member) else {
            return Ok(());
        };
        let mut deserializer = serde_json::Deserializer::from_str(raw);
        deserializer
            .deserialize_map(Headers(self))
            .map_err(|_| MessageError::Kind {
                member,
                wanted: "an object of strings, numbers, booleans and nulls",
            })
    }

    fn push(&mut self, text: &str) -> Range<usize> {
        let start = self.texts.len();
        self.texts.push_str(text);
        start..self.texts.len()
    }
}

struct Headers<'b>(&'b mut HeaderBuffer);

impl<'de> Visitor<'de> for Headers<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(buffer) = self;
        // Raw, both: what is in there without an escape is copied once only, and never allocated.
        while let Some(name) = map.next_key::<Key<'de>>()? {
            let name = buffer.push(&name.0);
            let value = match map.next_value::<Option<&'de RawValue>>()? {
                None => None,
                Some(raw) => Some(buffer.push(&header_value::<A::Error>(raw.get())?)),
            };
            buffer.places.push((name, value));
        }
        Ok(())
    }
}

fn header_value<E: serde::de::Error>(raw: &str) -> Result<Cow<'_, str>, E> {
    match raw.bytes().next() {
        Some(b'{' | b'[') | None => Err(E::custom("no header")),
        Some(b'"') => unquote(raw).ok_or_else(|| E::custom("half a surrogate pair")),
        // A number or a truth value, as it is written.
        Some(_) => Ok(Cow::Borrowed(raw)),
    }
}

/// A name, borrowed where it can be: a bare `Cow` never is.
#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
