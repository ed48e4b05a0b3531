//! The rows that wait in a slot and their tables: `walrelay check` shows what a relay will meet there.

use walrelay_lsn::{Lsn, RelationId};
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind, quote_ident, quote_literal};

use super::bookmarks::copy_slot;
use super::catalog::Wanted;
use super::script;

/// Bytes of WAL after the slot's position that are read.
pub const WAL_LIMIT: u64 = 64 << 20;
/// The number of messages that are read, up to the end of their transaction.
const MESSAGE_LIMIT: u32 = 100_000;
/// The number of messages whose Insert messages are read whole, and the most bytes of one.
const WHOLE: (u32, u32) = (1_000, 8_192);
/// `statement_timeout`: the server may have to decode much WAL from before the slot's position.
const SETTINGS: [(&str, &str); 1] = [("statement_timeout", "3s")];

/// Messages that wait in a slot.
#[derive(Clone, Default)]
#[expect(missing_debug_implementations, reason = "rows have values")]
pub struct WaitingRows {
    /// The Relation messages of the tables that have inserted rows.
    pub relations: Vec<Vec<u8>>,
    /// The Insert messages at the beginning, in no order. Large ones are missing.
    pub inserts: Vec<Vec<u8>>,
}

/// Returns the messages in the first [`WAL_LIMIT`] bytes after `confirmed`, the slot's position.
///
/// Reads a temporary copy of the slot, so a relay may read the slot meanwhile.
///
/// # Errors
/// Also if the server takes longer than 3 s, or has no room for another slot.
pub async fn waiting(
    info: &ConnInfo,
    wanted: &Wanted,
    confirmed: Lsn,
) -> Result<WaitingRows, Error> {
    let mut session = Session::connect(info, SessionKind::Sql, &SETTINGS).await?;
    let copy = format!("walrelay_check_{:08x}", fastrand::u32(..));
    session.query(&copy_slot(&wanted.slot, &copy, true)).await?;
    let peeked = session.query(&peek_sql(&copy, wanted, confirmed)).await;
    // The end of the session drops the copy too, but some time after `check` has ended.
    let dropped = session.query(&script::drop_slot(&copy)).await;
    let rows = peeked?;
    dropped?;
    let messages = rows.iter().filter_map(|row| bytes(row.get("message")?));
    let (relations, inserts): (Vec<_>, Vec<_>) =
        messages.partition(|message| message.first() == Some(&b'R'));
    session.close().await;
    let with_rows: Vec<RelationId> = inserts.iter().filter_map(|of| relation_of(of)).collect();
    let relations = relations.into_iter();
    Ok(WaitingRows {
        relations: relations
            .filter(|message| relation_of(message).is_some_and(|id| with_rows.contains(&id)))
            .collect(),
        inserts: inserts.into_iter().filter(|of| of.len() > 5).collect(),
    })
}

/// Returns a query of the Relation messages that wait, of the first Insert messages, and of the first
/// five bytes of each other one.
///
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
fn peek_sql(copy: &str, wanted: &Wanted, confirmed: Lsn) -> String {
    format!(
        "SELECT DISTINCT pg_catalog.encode(CASE WHEN pg_catalog.get_byte(data, 0) = {insert} \
          AND (number > {first} OR pg_catalog.octet_length(data) > {longest}) \
          THEN pg_catalog.substring(data, 1, 5) ELSE data END, 'hex') AS message \
         FROM pg_catalog.pg_logical_slot_peek_binary_changes({copy}, {upto}, {MESSAGE_LIMIT}, \
          'proto_version', '1', 'publication_names', {publication}) \
         WITH ORDINALITY AS changes(lsn, xid, data, number) WHERE pg_catalog.get_byte(data, 0) IN ({insert}, {relation})",
        first = WHOLE.0,
        longest = WHOLE.1,
        insert = b'I',
        relation = b'R',
        copy = quote_literal(copy),
        upto = quote_literal(&Lsn::new(confirmed.get().saturating_add(WAL_LIMIT)).to_string()),
        publication = quote_literal(&quote_ident(&wanted.publication)),
    )
}

/// Returns the table that a Relation or Insert message names in its first five bytes.
fn relation_of(message: &[u8]) -> Option<RelationId> {
    let id = message.get(1..5)?.try_into().ok()?;
    Some(RelationId::new(u32::from_be_bytes(id)))
}

/// Returns the bytes of a text in hexadecimal digits.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_hexadecimal_digits() {
        let message = bytes("490000400a").unwrap();
        assert_eq!(message, [b'I', 0, 0, 0x40, 0x0a]);
        assert_eq!(relation_of(&message), Some(RelationId::new(16_394)));
        assert_eq!(bytes("4g"), None);
        assert_eq!(relation_of(&message[..4]), None);
    }
}
