//! The thread of a sink: connects, and writes transactions.

use std::sync::Arc;
use std::time::Instant;

use tokio::time::sleep_until;
use tracing::{info, warn};
use walrelay_failure::Chain;
use walrelay_sink::Endpoints;
use walrelay_sink_client::{Connected as _, FOREVER, Failure, Reconnects};

use super::Shared;
use super::batch::{Batches, Stop};
use crate::client::Login;
use crate::client::error::RedisError;
use crate::client::link::Link;

/// The connections over which streams are compared with the notes of former sinks. A node that is down must not
/// hold up the streams of the others: those that are not compared then are compared by the next write to them.
const COMPARISONS: u32 = 3;

/// Writes until the sink is closed or broken. Returns why the records that are left have failed.
pub(super) async fn carry(login: &Arc<Login>, shared: &Shared) -> Failure {
    let mut reconnects = Reconnects::new("Redis", shared.settings.pauses);
    let mut endpoints = Endpoints::new(Arc::clone(&shared.stats));
    let mut batches = Batches::new(shared);
    let mut comparisons = COMPARISONS;
    loop {
        let connect = async |first| Link::connect(login, first).await;
        let connected = reconnects.connect(shared, &login.servers, &mut endpoints, connect);
        let Some(mut link) = connected.await else {
            return Failure::closed();
        };
        link.watch(&shared.stats);
        if login.sentinel.is_some() || login.cluster.is_some() {
            // The others were sentinels, or masters that are none any more.
            endpoints.keep_only(link.names());
        }
        batches.forget();
        let error = match session(
            &mut link,
            shared,
            &mut batches,
            &mut endpoints,
            &mut reconnects,
            &mut comparisons,
        )
        .await
        {
            Ok(failure) => return failure,
            Err(error) => error,
        };
        warn!(error = %Chain(&error), "the connection to Redis has ended");
        // A node that is cut off from the cluster answers, and may name masters that are gone.
        if matches!(error, RedisError::NotReady { .. }) || login.cluster.is_some() {
            reconnects.next_host();
        }
        endpoints.attempt(link.address(), None, false);
        shared.lost(&error);
    }
}

/// Writes until the sink is closed or broken (`Ok`), or the connection breaks.
async fn session(
    link: &mut Link,
    shared: &Shared,
    batches: &mut Batches<'_>,
    endpoints: &mut Endpoints,
    reconnects: &mut Reconnects,
    comparisons: &mut u32,
) -> Result<Failure, RedisError> {
    if *comparisons > 0 {
        *comparisons -= 1;
        let compared = shared.unless_over(batches.compare_ends(link)).await;
        let Some(compared) = compared else {
            return Ok(Failure::closed());
        };
        compared?;
        *comparisons = 0;
    }
    loop {
        if shared.is_over() {
            return Ok(Failure::closed());
        }
        let began = Instant::now();
        let Some(written) = shared.unless_over(batches.write(link)).await else {
            return Ok(Failure::closed());
        };
        match written {
            Ok(false) => {
                let closing = shared.state().closing;
                let end = closing.unwrap_or_else(|| Instant::now() + FOREVER);
                let end = batches.next_due(began).map_or(end, |due| due.min(end));
                tokio::select! {
                    error = link.ended() => return Err(error),
                    () = shared.wake.notified() => {}
                    () = sleep_until(end.into()) => {}
                }
            }
            Ok(true) | Err(Stop::Again) => {
                reconnects.succeeded();
                shared.set_obstacle(None);
                for address in link.take_asked() {
                    endpoints.attempt(address, Some(began.elapsed()), false);
                }
            }
            Err(Stop::Connection(error)) => return Err(error),
            Err(Stop::Broken(failure)) => return Ok(failure),
            Err(Stop::Pause(obstacle)) => {
                let known = shared.state().obstacle.replace(obstacle.clone());
                if link.is_stale() {
                    info!(reason = obstacle.what, "the slots of Redis are read again");
                } else if known != Some(obstacle.clone()) {
                    warn!(
                        reason = obstacle.what,
                        "Redis accepts no writes at the moment"
                    );
                }
                for address in link.take_asked() {
                    endpoints.attempt(address, Some(began.elapsed()), true);
                }
                let until = reconnects.failed();
                if shared
                    .unless_over(sleep_until(until.into()))
                    .await
                    .is_none()
                {
                    return Ok(Failure::closed());
                }
                if link.is_stale() {
                    let Some(renewed) = shared.unless_over(link.renew()).await else {
                        return Ok(Failure::closed());
                    };
                    renewed?;
                    endpoints.keep_only(link.names());
                }
            }
        }
    }
}
