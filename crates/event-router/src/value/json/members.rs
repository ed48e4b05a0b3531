//! Reads the members of an object with `serde_json`, which borrows what needs no decoding.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Calls `each` with the name and value of each member of a JSON object; a null value is `None`.
pub(crate) fn each_member<'a>(
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
pub(crate) fn unquote(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        // Half of a surrogate pair is allowed in JSON, but not in UTF-8: an error.
        serde_json::from_str(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}
