//! The functions that write events as messages, and transactions that may have called them.

use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session, quote_literal};

use crate::catalog::row::{is_true, parsed};
use crate::confirmation::insert_position;
use crate::script;
use crate::script::EmitFunction;

/// The functions that write events as messages, as a fence meets them. A database has one of each, and so one prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emitters {
    /// The table that both write to exists, and one of them writes messages with this prefix. The gate of functions
    /// with another prefix is of another relay.
    pub have_gate: bool,
    /// Both functions are those of this version, for this prefix, and write to it.
    pub are_gated: bool,
    /// Replacing both harms no other relay: each that exists writes messages with this prefix, and one does.
    pub are_own: bool,
}

/// Looks at the functions that write events with this prefix as messages.
pub async fn find_emitters(session: &mut Session, prefix: &str) -> Result<Emitters, Error> {
    let gate = quote_literal(&script::table(&EmitFunction::gate()));
    let exists = format!("SELECT pg_catalog.to_regclass({gate}) IS NOT NULL AS there");
    let rows = session.query(&exists).await?;
    let has_gate = rows.first().is_some_and(|row| is_true(&row, "there"));
    let mut are_gated = has_gate;
    let (mut own, mut others) = (0, 0);
    for function in EmitFunction::ALL {
        let rows = session.query(function.find()).await?;
        let body = rows.first();
        let body = body.and_then(|row| row.get("prosrc").map(str::to_owned));
        match &body {
            Some(body) if EmitFunction::writes(body, prefix) => own += 1,
            Some(_) => others += 1,
            None => {}
        }
        are_gated &= body.is_some_and(|body| function.is(&body, prefix));
    }
    Ok(Emitters {
        have_gate: has_gate && own > 0,
        are_gated,
        are_own: own > 0 && others == 0,
    })
}

/// Returns the transaction ID behind those of all transactions that have begun to write.
pub async fn next_transaction(session: &mut Session) -> Result<u64, Error> {
    let next = snapshot_bound(session, "xmax").await?;
    Ok(next.unwrap_or(u64::MAX))
}

/// Returns a position behind every transaction before this ID; `None` if one has not ended. Those of all databases
/// count, and prepared ones.
pub async fn position_behind(session: &mut Session, next: u64) -> Result<Option<Lsn>, Error> {
    let oldest = snapshot_bound(session, "xmin").await?;
    if oldest.is_none_or(|oldest| oldest < next) {
        return Ok(None);
    }
    insert_position(session).await.map(Some)
}

async fn snapshot_bound(session: &mut Session, bound: &str) -> Result<Option<u64>, Error> {
    let sql =
        format!("SELECT pg_catalog.pg_snapshot_{bound}(pg_catalog.pg_current_snapshot()) AS bound");
    let rows = session.query(&sql).await?;
    Ok(rows.first().and_then(|row| parsed(&row, "bound")))
}
