//! What the creation of a slot waits for: Postgres creates a slot when all transactions have ended that were
//! open at its beginning, in any database of the server.

use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;
use walrelay_failure::Chain;
use walrelay_sink::lock;
use walrelay_walsender::{ConnInfo, Error, Session, SessionKind};

use crate::catalog::oldest_writer_sql;
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

/// The remedy on a standby.
const STANDBY_REMEDY: &str = "see that the primary writes, and that the standby follows it";

/// The event that the creation of a slot waits for, shared by the source and its views.
#[derive(Debug, Default)]
pub struct SlotWait(Mutex<Option<(String, &'static str)>>);

impl SlotWait {
    /// Returns what is waited for, and the remedy; `None` while nothing is.
    pub fn read(&self) -> Option<(String, &'static str)> {
        lock(&self.0).clone()
    }

    fn set(&self, what: Option<(String, &'static str)>) {
        *lock(&self.0) = what;
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
            let remedy = if in_recovery { STANDBY_REMEDY } else { REMEDY };
            waiting.0.set(Some((text, remedy)));
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
    let sql = oldest_writer_sql(
        "holder || coalesce(' in database ' || database, '') AS holder, \
         coalesce(seconds::text, '?') AS seconds",
    );
    let rows = session.query(&sql).await?;
    Ok(rows.first().map(|row| Oldest {
        holder: row.get("holder").unwrap_or_default().to_owned(),
        seconds: row.get("seconds").unwrap_or_default().to_owned(),
    }))
}
