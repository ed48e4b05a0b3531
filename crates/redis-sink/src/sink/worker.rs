//! The thread of a sink: connects, and writes transactions.

use std::sync::Arc;
use std::time::Instant;

use tokio::time::sleep_until;
use tracing::warn;
use walrelay_sink::{Chain, Endpoints};
use walrelay_sink_client::{FOREVER, Failure, Reconnects};

use super::Shared;
use super::batch::{Batches, Stop};
use crate::client::error::RedisError;
use crate::client::{Connection, Login, connect};

/// Writes until the sink is closed or broken. Returns why the records that are left have failed.
pub(super) async fn carry(login: &Login, shared: &Shared) -> Failure {
    let mut reconnects = Reconnects::new("Redis", shared.settings.pauses);
    let mut endpoints = Endpoints::new(Arc::clone(&shared.stats));
    let mut batches = Batches::new(shared);
    loop {
        let connect = async |first| connect(login, first).await;
        let connected = reconnects.connect(shared, &login.servers, &mut endpoints, connect);
        let Some(connection) = connected.await else {
            return Failure::closed();
        };
        let address = connection.address.clone();
        if login.sentinel.is_some() {
            // The others were sentinels, or masters that are none any more.
            endpoints.keep_only(&address);
        }
        batches.forget();
        let error = match session(
            connection,
            shared,
            &mut batches,
            &mut endpoints,
            &mut reconnects,
        )
        .await
        {
            Ok(failure) => return failure,
            Err(error) => error,
        };
        warn!(error = %Chain(&error), "the connection to Redis has ended");
        if matches!(error, RedisError::NotReady { .. }) {
            reconnects.next_host();
        }
        endpoints.attempt(&address, None, false);
        shared.lost(&error);
    }
}

/// Writes until the sink is closed or broken (`Ok`), or the connection breaks.
async fn session(
    mut connection: Connection,
    shared: &Shared,
    batches: &mut Batches<'_>,
    endpoints: &mut Endpoints,
    reconnects: &mut Reconnects,
) -> Result<Failure, RedisError> {
    loop {
        if shared.is_over() {
            return Ok(Failure::closed());
        }
        if shared.state().records.is_empty() {
            let closing = shared.state().closing;
            let end = closing.unwrap_or_else(|| Instant::now() + FOREVER);
            tokio::select! {
                error = connection.ended() => return Err(error),
                () = shared.wake.notified() => {}
                () = sleep_until(end.into()) => {}
            }
            continue;
        }
        let began = Instant::now();
        let Some(written) = shared.unless_over(batches.write(&mut connection)).await else {
            return Ok(Failure::closed());
        };
        match written {
            Ok(()) => {
                reconnects.succeeded();
                shared.set_obstacle(None);
                endpoints.attempt(&connection.address, Some(began.elapsed()), false);
            }
            Err(Stop::Connection(error)) => return Err(error),
            Err(Stop::Broken(failure)) => return Ok(failure),
            Err(Stop::Pause(obstacle)) => {
                let known = shared.state().obstacle.replace(obstacle.clone());
                if known != Some(obstacle.clone()) {
                    warn!(
                        reason = obstacle.what,
                        "Redis takes no writes at the moment"
                    );
                }
                endpoints.attempt(&connection.address, Some(began.elapsed()), true);
                let until = reconnects.failed();
                if shared
                    .unless_over(sleep_until(until.into()))
                    .await
                    .is_none()
                {
                    return Ok(Failure::closed());
                }
            }
        }
    }
}
