//! SQL that adds up rows of a table as the relay adds up the rows of the log
//! (`walrelay_relay::SentAccount`).

use walrelay_relay::BUCKET_SECONDS;
use walrelay_walsender::quote_ident;

/// Rows of one relation whose hashes are added up.
#[derive(Debug, Clone)]
pub(crate) struct HashedRows<'a> {
    /// What follows FROM.
    pub(crate) from: &'a str,
    /// The hashed columns, and the column of the age at the end, as the account has them.
    pub(crate) columns: &'a [String],
    /// What follows WHERE. A line of its own, because it may end in a comment.
    pub(crate) condition: &'a str,
    /// More values of each row, each with its name: `, … AS …`.
    pub(crate) more: &'a str,
}

impl HashedRows<'_> {
    /// Writes a query of `bucket`, `high`, `low` and the further values of each row.
    pub(crate) fn rows(&self) -> String {
        let hash = hash(self.columns);
        let bucket = bucket(self.columns);
        let (from, condition, more) = (self.from, self.condition, self.more);
        // Without OFFSET 0 the planner would compute the hash for each half.
        format!(
            "SELECT hashed.*, {halves} FROM (SELECT {bucket} AS bucket, {hash} AS hash{more} \
             FROM {from} WHERE\n{condition}\nOFFSET 0) AS hashed",
            halves = halves(),
        )
    }
}

/// Writes the number of a row's bucket. NULL if the row has no age.
pub(crate) fn bucket(columns: &[String]) -> String {
    let age = columns.last().map(|age| quote_ident(age));
    format!(
        "pg_catalog.floor(EXTRACT(epoch FROM {}) / {BUCKET_SECONDS})::int8",
        age.unwrap_or_default()
    )
}

/// Writes the halves of a `hash` as `high` and `low`.
pub(crate) fn halves() -> String {
    format!("{} AS high, {} AS low", half("hash", 1), half("hash", 9))
}

/// Writes the hash of a row: SHA-256 of each value's length in characters and text, by the type's
/// output function as `pgoutput` sends it, and of the age in microseconds since 1970 UTC.
pub(crate) fn hash(columns: &[String]) -> String {
    let Some((age, hashed)) = columns.split_last() else {
        return "NULL::bytea".to_owned();
    };
    let mut parts: Vec<String> = hashed
        .iter()
        .map(|column| {
            let column = quote_ident(column);
            let text = format!("pg_catalog.format('%s', {column})");
            // `IS NULL` would be true of a composite value whose fields are NULL.
            format!(
                "CASE WHEN {column} IS NOT DISTINCT FROM NULL THEN 'n;' \
                 ELSE pg_catalog.format('%s:%s;', pg_catalog.length({text}), {text}) END"
            )
        })
        .collect();
    let age = quote_ident(age);
    parts.push(format!("(EXTRACT(epoch FROM {age}) * 1000000)::int8::text"));
    format!(
        "pg_catalog.sha256(pg_catalog.convert_to({}, 'UTF8'))",
        parts.join(" || ")
    )
}

/// Writes eight bytes of a hash, from this one on, as a signed number.
fn half(hash: &str, from: u32) -> String {
    format!(
        "('x' || pg_catalog.encode(pg_catalog.substring({hash}, {from}, 8), 'hex'))::bit(64)::int8"
    )
}
