//! `[source.messages]`.

use super::reader::Reader;
use super::table_name;

const PREFIX: &str = "source.messages.prefix";

/// The prefix of messages that are events.
pub(super) fn prefix(reader: &mut Reader<'_>) -> Option<String> {
    // What Postgres wants of a name is a sensible measure for a prefix, too.
    reader.parsed(PREFIX, |text| {
        table_name::identifier(text).map(|()| text.to_owned())
    })
}

/// Whether there are messages, so that no table need be named.
pub(super) fn suffice(reader: &Reader<'_>) -> bool {
    reader.has(PREFIX)
}
