//! The waiting log of a slot: `walrelay check` shows what a relay will meet there.

use walrelay_lsn::{Lsn, RelationId};
use walrelay_walsender::{ConnInfo, Error, Rows, Session, SessionKind, quote_ident, quote_literal};

use super::bookmarks::copy_slot;
use super::catalog::Wanted;
use super::catalog::row::{is_true, parsed};
use super::script;
use super::sent_rows::account::relations;

/// Bytes of WAL after the slot's position that are read.
pub const WAL_LIMIT: u64 = 64 << 20;
/// The number of messages that are read, up to the end of their transaction.
const MESSAGE_LIMIT: u32 = 100_000;
/// The number of changes that are read with their rows, up to the end of their transaction.
const CHANGE_LIMIT: u32 = 1000;
/// Bytes of these changes. An answer of the server has twice as many, as hexadecimal digits.
const CHANGE_BYTES: u32 = 12 << 20;
/// `statement_timeout`: the server may have to decode much WAL from before the slot's position.
const SETTINGS: [(&str, &str); 1] = [("statement_timeout", "3s")];

/// The messages that wait in a slot.
#[derive(Debug)]
pub struct Waiting {
    /// The Relation messages of the tables that have inserted rows in the first [`WAL_LIMIT`] bytes.
    pub relations: Vec<Vec<u8>>,
    /// The first messages, each with its position: of 1,000 changes and 12 MiB at most. `None`: they could not be
    /// read in time.
    pub changes: Option<Vec<(Lsn, Vec<u8>)>>,
}

/// Reads the waiting log after `confirmed`, the slot's position.
///
/// Reads a temporary copy of the slot, so a relay may read the slot meanwhile.
///
/// # Errors
/// Also if the server takes longer than 3 s, or has no room for another slot.
pub async fn waiting(info: &ConnInfo, wanted: &Wanted, confirmed: Lsn) -> Result<Waiting, Error> {
    let mut session = Session::connect(info, SessionKind::Sql, &SETTINGS).await?;
    let copy = format!("walrelay_check_{:08x}", fastrand::u32(..));
    session.query(&copy_slot(&wanted.slot, &copy, true)).await?;
    let peeked = session.query(&peek_sql(&copy, wanted, confirmed)).await;
    let changes = match &peeked {
        Ok(_) => session.query(&changes_sql(&copy, wanted, confirmed)).await,
        Err(_) => Ok(Rows::default()),
    };
    // The end of the session drops the copy too, but some time after `check` has ended.
    let dropped = session.query(&script::drop_slot(&copy)).await;
    let rows = peeked?;
    dropped?;
    let messages = rows.iter().filter_map(|row| bytes(row.get("message")?));
    let (relations, inserts): (Vec<_>, Vec<_>) =
        messages.partition(|message| message.first() == Some(&b'R'));
    session.close().await;
    let with_rows: Vec<RelationId> = inserts.iter().filter_map(|of| relation_of(of)).collect();
    let relations = relations
        .into_iter()
        .filter(|message| relation_of(message).is_some_and(|id| with_rows.contains(&id)));
    let read = |rows: Rows| -> Vec<(Lsn, Vec<u8>)> {
        let changes = rows.iter();
        let changes =
            changes.filter_map(|row| Some((parsed(&row, "lsn")?, bytes(row.get("message")?)?)));
        changes.collect()
    };
    Ok(Waiting {
        relations: relations.collect(),
        changes: changes.ok().map(read),
    })
}

/// Returns true if an event was written after `confirmed`, the slot's position, and before `end`.
///
/// Reads a temporary copy of the slot, [`WAL_LIMIT`] at a time.
///
/// # Errors
/// Also if the server has no room for another slot.
pub async fn has_events(
    info: &ConnInfo,
    wanted: &Wanted,
    confirmed: Lsn,
    end: Lsn,
) -> Result<bool, Error> {
    let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
    let copy = format!("walrelay_verify_{:08x}", fastrand::u32(..));
    session.query(&copy_slot(&wanted.slot, &copy, true)).await?;
    let mut upto = confirmed;
    let mut found = Ok(false);
    while matches!(found, Ok(false)) && upto < end {
        upto = end.min(Lsn::new(upto.get().saturating_add(WAL_LIMIT)));
        let rows = session.query(&events_sql(&copy, wanted, upto)).await;
        found = rows.map(|rows| rows.first().is_some_and(|row| is_true(&row, "found")));
    }
    let dropped = session.query(&script::drop_slot(&copy)).await;
    let found = found?;
    dropped?;
    session.close().await;
    Ok(found)
}

/// Returns a query whether a copy has an event up to this position, which the copy is moved to: a row of an outbox
/// table, or a message with the prefix.
fn events_sql(copy: &str, wanted: &Wanted, upto: Lsn) -> String {
    let tables: Vec<String> = wanted.tables.iter().map(relations).collect();
    let rows = format!(
        "pg_catalog.get_byte(data, 0) = {} AND pg_catalog.encode(pg_catalog.substring(data, 2, 4), 'hex') IN \
         (SELECT pg_catalog.lpad(pg_catalog.to_hex(oid::int8), 8, '0') FROM ({}) AS outbox)",
        b'I',
        tables.join(" UNION ")
    );
    let mut conditions: Vec<String> = (!tables.is_empty()).then_some(rows).into_iter().collect();
    let mut options = "";
    if let Some(prefix) = &wanted.messages {
        options = ", 'messages', 'true'";
        let prefix = format!(
            "pg_catalog.convert_to({}, 'UTF8') || '\\x00'::bytea",
            quote_literal(prefix)
        );
        // The type, flags and a position come before the prefix, which ends with a zero.
        conditions.push(format!(
            "pg_catalog.get_byte(data, 0) = {} AND pg_catalog.substring(data, 11, pg_catalog.octet_length({prefix})) \
             = {prefix}",
            b'M'
        ));
    }
    format!(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_logical_slot_get_binary_changes({copy}, '{upto}', NULL, \
         'proto_version', '1', 'publication_names', {publication}{options}) WHERE {conditions}) AS found",
        copy = quote_literal(copy),
        publication = quote_literal(&quote_ident(&wanted.publication)),
        conditions = conditions.join(" OR "),
    )
}

/// Writes a call of the function that reads the messages of a copy, up to this number of them and the end of
/// their transaction.
fn peek_call(copy: &str, wanted: &Wanted, confirmed: Lsn, limit: u32, options: &str) -> String {
    format!(
        "pg_catalog.pg_logical_slot_peek_binary_changes({copy}, {upto}, {limit}, 'proto_version', '1', \
         'publication_names', {publication}{options})",
        copy = quote_literal(copy),
        upto = quote_literal(&Lsn::new(confirmed.get().saturating_add(WAL_LIMIT)).to_string()),
        publication = quote_literal(&quote_ident(&wanted.publication)),
    )
}

/// Returns a query of the first messages in their order.
fn changes_sql(copy: &str, wanted: &Wanted, confirmed: Lsn) -> String {
    let messages = match wanted.messages {
        Some(_) => ", 'messages', 'true'",
        None => "",
    };
    format!(
        "SELECT lsn, pg_catalog.encode(data, 'hex') AS message FROM (SELECT lsn, data, number, \
         sum(pg_catalog.octet_length(data)) OVER (ORDER BY number) AS total FROM {} \
         WITH ORDINALITY AS peeked(lsn, xid, data, number)) AS peeked \
         WHERE total <= {CHANGE_BYTES} ORDER BY number",
        peek_call(copy, wanted, confirmed, CHANGE_LIMIT, messages)
    )
}

/// Returns a query of the Relation messages that wait, and of the first five bytes of each Insert
/// message.
///
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
fn peek_sql(copy: &str, wanted: &Wanted, confirmed: Lsn) -> String {
    format!(
        "SELECT DISTINCT pg_catalog.encode(CASE pg_catalog.get_byte(data, 0) WHEN {insert} \
          THEN pg_catalog.substring(data, 1, 5) ELSE data END, 'hex') AS message \
         FROM {peeked} WHERE pg_catalog.get_byte(data, 0) IN ({insert}, {relation})",
        insert = b'I',
        relation = b'R',
        peeked = peek_call(copy, wanted, confirmed, MESSAGE_LIMIT, ""),
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
