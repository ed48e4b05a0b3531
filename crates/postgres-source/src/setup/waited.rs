//! What the creation of a slot waits for: Postgres creates a slot when all transactions have ended that were
//! open at its beginning, in any database of the server.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;
use walrelay_sink::Chain;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::deadline::bounded;

/// The text about the event that the creation of a slot on a standby waits for.
pub const ON_STANDBY: &str = "the standby waits for the next record of running transactions \
    from its primary, and for open transactions; SELECT pg_log_standby_snapshot() on the primary \
    writes such a record at once";

/// Time between two looks. Usually a slot is created before the first.
const INTERVAL: Duration = Duration::from_secs(2);
/// The same after a look that failed: each costs the server a connection.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The text about the event that the creation of a slot waits for.
const WAITING: &str = "Postgres creates the slot when open transactions have ended";

/// The remedy for a transaction that is open for long.
const REMEDY: &str =
    "end the transaction: SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED in its database";

/// The event that the creation of a slot waits for, shared by the source and its views.
#[derive(Debug, Default)]
pub struct SlotWait(Mutex<Option<String>>);

impl SlotWait {
    /// Returns what is waited for, and the remedy; `None` while nothing is.
    pub fn read(&self) -> Option<(String, &'static str)> {
        let what = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let remedy = match what.as_deref()? {
            ON_STANDBY => "see that the primary writes, and that the standby follows it",
            _ => REMEDY,
        };
        what.clone().map(|what| (what, remedy))
    }

    fn set(&self, what: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// Waits for a slot that a session creates, and names meanwhile what the server waits for. It looks by a
    /// session of its own: that of the setup must be idle when a stop drops this future.
    pub(crate) async fn name_while<T>(
        &self,
        info: &ConnInfo,
        in_recovery: bool,
        made: impl Future<Output = T>,
    ) -> T {
        let mut made = pin!(made);
        // Cleared also if this future is dropped.
        let waiting = Waiting(self);
        let (mut logged, mut session, mut pause) = (String::new(), None, INTERVAL);
        loop {
            let look = async {
                sleep(pause).await;
                if in_recovery {
                    return Ok(None);
                }
                bounded("reading open transactions", oldest(&mut session, info)).await
            };
            let found = tokio::select! {
                biased;
                made = &mut made => return made,
                found = look => found,
            };
            pause = INTERVAL;
            let text = match found {
                Ok(None) if in_recovery => ON_STANDBY.to_owned(),
                Ok(None) => WAITING.to_owned(),
                Ok(Some(Oldest { holder, seconds })) => {
                    if holder != logged {
                        warn!(
                            transaction = holder,
                            remedy = REMEDY,
                            "waiting for an open transaction before creating the slot"
                        );
                    }
                    let text = format!("{WAITING}; the oldest: {holder}, open for {seconds} s");
                    logged = holder;
                    text
                }
                Err(error) => {
                    session = None;
                    pause = LONGEST_PAUSE;
                    format!("{WAITING}, which are not seen: {}", Chain(&error))
                }
            };
            waiting.0.set(Some(text));
        }
    }
}

/// Ends the wait when it is dropped.
struct Waiting<'a>(&'a SlotWait);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// The oldest transaction that has written or is prepared.
struct Oldest {
    holder: String,
    seconds: String,
}

async fn oldest(session: &mut Option<Session>, info: &ConnInfo) -> Result<Option<Oldest>, Error> {
    let session = match session {
        Some(session) => session,
        None => session.insert(Session::connect(info, SessionKind::Sql, &[]).await?),
    };
    let rows = session
        .query(
            "SELECT holder, coalesce(seconds::text, '?') AS seconds FROM (\
              SELECT backend_xid AS xid, 'server process ' || pid \
              || coalesce(' (' || nullif(application_name, '') || ')', '') \
              || coalesce(' in database ' || datname, '') AS holder, \
              extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::int8 AS seconds \
              FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL \
             UNION ALL SELECT transaction, 'prepared transaction ' || gid || ' in database ' || database, \
              extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::int8 \
              FROM pg_catalog.pg_prepared_xacts) AS writers \
             ORDER BY pg_catalog.age(xid) DESC LIMIT 1",
        )
        .await?;
    Ok(rows.first().map(|row| Oldest {
        holder: row.get("holder").unwrap_or_default().to_owned(),
        seconds: row.get("seconds").unwrap_or_default().to_owned(),
    }))
}
