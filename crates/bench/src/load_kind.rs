//! The kinds of loads: what a row contains, and the form that the events have in the WAL.

use serde::Serialize;
use walrelay_measure::load;

pub(crate) const PARTITIONS: i32 = 8;
/// A common value: an order of some 270 bytes of jsonb.
pub(crate) const ORDER: &str = "jsonb_build_object(\
      'orderId', n, 'customer', 'customer-' || n % 10000, 'currency', 'EUR', \
      'total', (n * 37 % 100000) / 100.0, 'reference', md5(n::text), 'address', \
      jsonb_build_object('street', 'Long Lane ' || n % 300, 'city', 'Springfield', 'zip', '04711'), \
      'note', 'at the door ' || left(md5((n + 1)::text), 22))";

/// The rows to write to the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Load {
    pub(crate) rows: u64,
    pub(crate) topics: u32,
    pub(crate) partitions: i32,
    /// Bytes of the payload; `None` is an order of some 270 bytes.
    pub(crate) bytes: Option<u32>,
    pub(crate) form: Form,
}

/// The form that the events have in the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Form {
    /// Inserted rows.
    Rows,
    /// Messages of `outbox.emit`.
    Messages,
    /// Messages of `outbox.emit_all` with ten events each; events that are alone in their transaction are
    /// alone in their message.
    Batches,
}

impl Load {
    pub(crate) const fn orders(rows: u64) -> Self {
        Self {
            rows,
            topics: 1,
            partitions: PARTITIONS,
            bytes: None,
            form: Form::Rows,
        }
    }

    /// Returns the statement that writes the messages of the rows of `table`, over a row's number `n` from 1. The
    /// first row has the `seq` after `before`.
    pub(crate) fn messages(&self, table: &str, before: i64) -> String {
        let event = "'id', t.id, 'aggregate', t.aggregatetype, 'key', t.aggregateid, 'type', t.type, \
                     'payload', t.payload";
        let all = format!(
            "outbox.emit_all(jsonb_agg(jsonb_build_object({event}) ORDER BY t.seq)) FROM {table} t"
        );
        match self.form {
            Form::Rows => unreachable!("rows are inserted"),
            Form::Messages => format!(
                "PERFORM (SELECT outbox.emit(t.aggregatetype, t.aggregateid, t.payload, type => t.type, id => t.id) \
                 FROM {table} t WHERE t.seq = {before} + n)"
            ),
            Form::Batches => format!(
                "PERFORM CASE WHEN (n - 1) % {block} < {block} / 5 THEN (SELECT {all} WHERE t.seq = {before} + n) \
                 WHEN n % 10 = 1 THEN (SELECT {all} WHERE t.seq BETWEEN {before} + n AND {before} + n + 9) END",
                block = load::BLOCK_ROWS
            ),
        }
    }

    /// Returns the SELECT of a row, over its number `n`.
    pub(crate) fn row(&self) -> String {
        let kind = if self.topics == 1 {
            "'order'".to_owned()
        } else {
            format!("'order-' || n % {}", self.topics)
        };
        let payload = match self.bytes {
            None => ORDER.to_owned(),
            Some(bytes) => format!(
                "jsonb_build_object('orderId', n, 'text', (SELECT left(string_agg(md5(n || '.' || i), ''), \
                 {bytes} - 40) FROM generate_series(1, {bytes} / 32 + 1) i))"
            ),
        };
        format!("SELECT {kind}, 'customer-' || n % 10000, 'OrderPlaced', {payload}")
    }

    /// Returns the topics that the records of this load go to.
    pub(crate) fn topics(&self, prefix: &str) -> Vec<String> {
        if self.topics == 1 {
            return vec![format!("{prefix}order")];
        }
        let one = |number| format!("{prefix}order-{number}");
        (0..self.topics).map(one).collect()
    }
}
