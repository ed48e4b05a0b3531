//! Places the orders of the demonstration.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use walrelay_walsender::{ConnInfo, Error, Row, Session, SessionKind};

use super::AGGREGATES;
use super::tracker::EventTracker;
use crate::cli::DemoArgs;

/// The service's own table: the number of events of each aggregate. Its row locks make the numbers
/// of an aggregate follow the order of the commits.
pub(super) const CREATE_AGGREGATES: &str =
    "CREATE TABLE aggregates (kind text, id text, number bigint NOT NULL, PRIMARY KEY (kind, id))";

/// Aggregates of each type.
const KEYS: u32 = 20;

/// Places orders until the time is over, at Ctrl-C, or until the sender of `finished` is dropped.
pub(super) async fn write(
    info: &ConnInfo,
    args: &DemoArgs,
    tracker: &EventTracker,
    mut finished: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let mut session = Session::connect(info, SessionKind::Sql, &[]).await?;
    // The drill ends by itself; `--seconds` is for demonstrations that do not.
    let end = args
        .seconds
        .filter(|_| !args.drill)
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut tick = interval(Duration::from_secs(1) / args.rate);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        tokio::select! {
            biased;
            _ = &mut interrupted => break,
            _ = &mut finished => break,
            () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => break,
            _ = tick.tick() => {}
        }
        let fails = fastrand::u8(..100) < args.rollbacks;
        transaction(&mut session, fails, tracker).await?;
    }
    session.close().await;
    Ok(())
}

/// Writes one to three events of different aggregates in one transaction, and rolls it back if
/// `fails`.
async fn transaction(
    session: &mut Session,
    fails: bool,
    tracker: &EventTracker,
) -> Result<(), Error> {
    session.query("BEGIN").await?;
    let mut ids = Vec::new();
    for kind in AGGREGATES
        .iter()
        .take(fastrand::usize(1..=AGGREGATES.len()))
    {
        let aggregate = format!("{}-{}", kind.to_lowercase(), fastrand::u32(1..=KEYS));
        let amount = fastrand::u32(100..100_000);
        // The texts in the statement are made here, so they need no quoting.
        let sql = format!(
            "WITH aggregate AS (
                 INSERT INTO aggregates VALUES ('{kind}', '{aggregate}', 1)
                 ON CONFLICT (kind, id) DO UPDATE SET number = aggregates.number + 1
                 RETURNING number)
             INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
             SELECT '{kind}', '{aggregate}', '{kind}Placed',
                    jsonb_build_object('number', number, 'cents', {amount})
             FROM aggregate RETURNING id"
        );
        let rows = session.query(&sql).await?;
        let id = rows
            .first()
            .and_then(|row: Row<'_>| row.get("id").map(str::to_owned));
        ids.extend(id);
    }
    if fails {
        session.query("ROLLBACK").await?;
        tracker.rolled_back(&ids);
    } else {
        tracker.committing(&ids);
        session.query("COMMIT").await?;
    }
    Ok(())
}
