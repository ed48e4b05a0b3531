//! The thread of a sink: connects, and writes transactions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;
use tracing::{info, warn};
use walrelay_sink::{Chain, Disposition, Endpoints, Obstacle, lock};

use super::batch::{Batches, Stop};
use super::{FOREVER, Failure, Shared};
use crate::client::error::RedisError;
use crate::client::{Connection, Login, connect};

/// Runs until the sink is closed or broken.
pub(super) fn run(login: &Login, shared: &Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let failure = match runtime {
        Ok(runtime) => {
            let failure = runtime.block_on(Box::pin(carry(login, shared)));
            // A name that is being resolved is not waited for.
            runtime.shutdown_background();
            failure
        }
        Err(error) => Failure {
            class: "broken",
            reason: format!("the connection's thread cannot run: {error}"),
            disposition: Disposition::Retryable,
        },
    };
    shared.end(&failure);
}

async fn carry(login: &Login, shared: &Shared) -> Failure {
    let mut failures = Failures::default();
    let mut endpoints = Endpoints::new(Arc::clone(&shared.stats));
    let mut batches = Batches::new(shared);
    loop {
        let connected = connected(login, shared, &mut failures, &mut endpoints);
        let Some(connection) = connected.await else {
            return given_up();
        };
        let address = connection.address.clone();
        endpoints.connected(&address);
        batches.forget();
        let error = match session(
            connection,
            shared,
            &mut batches,
            &mut endpoints,
            &mut failures,
        )
        .await
        {
            Ok(failure) => return failure,
            Err(error) => error,
        };
        warn!(error = %Chain(&error), "the connection to Redis has ended");
        if matches!(error, RedisError::NotReady { .. }) {
            failures.host = failures.host.wrapping_add(1);
        }
        endpoints.attempt(&address, None, false);
        lost(shared, &error);
    }
}

/// Counts what failed since the last success.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    /// The number of the host that is tried first: a replica must not be tried for ever.
    host: usize,
}

impl Failures {
    fn another(&mut self, (first, longest): (Duration, Duration)) -> Instant {
        let pause = first.saturating_mul(1 << self.count.min(20)).min(longest);
        self.count = self.count.saturating_add(1);
        // Between half and the whole, so that several relays do not try all at once.
        Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// Writes until the sink is closed or broken (`Ok`), or the connection breaks.
async fn session(
    mut connection: Connection,
    shared: &Shared,
    batches: &mut Batches<'_>,
    endpoints: &mut Endpoints,
    failures: &mut Failures,
) -> Result<Failure, RedisError> {
    let pauses = shared.settings.pauses;
    loop {
        if shared.is_over() {
            return Ok(given_up());
        }
        if lock(&shared.state).queue.is_empty() {
            let closing = lock(&shared.state).closing;
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
            return Ok(given_up());
        };
        match written {
            Ok(()) => {
                failures.count = 0;
                shared.set_obstacle(None);
                endpoints.attempt(&connection.address, Some(began.elapsed()), false);
            }
            Err(Stop::Connection(error)) => return Err(error),
            Err(Stop::Broken(failure)) => return Ok(failure),
            Err(Stop::Pause(obstacle)) => {
                let known = lock(&shared.state).obstacle.replace(obstacle.clone());
                if known != Some(obstacle.clone()) {
                    warn!(
                        reason = obstacle.what,
                        "Redis takes no writes at the moment"
                    );
                }
                endpoints.attempt(&connection.address, Some(began.elapsed()), true);
                let until = failures.another(pauses);
                if shared
                    .unless_over(sleep_until(until.into()))
                    .await
                    .is_none()
                {
                    return Ok(given_up());
                }
            }
        }
    }
}

/// Shows that there is no connection.
fn lost(shared: &Shared, error: &RedisError) {
    shared.set_obstacle(Some(Obstacle {
        what: Chain(error).to_string(),
        disposition: error.disposition(),
        remedy: None,
    }));
}

/// Connects, as often as it needs, with a pause after each failure. `None`: the sink is to end.
async fn connected(
    login: &Login,
    shared: &Shared,
    failures: &mut Failures,
    endpoints: &mut Endpoints,
) -> Option<Connection> {
    loop {
        if failures.count > 0 {
            let until = failures.another(shared.settings.pauses);
            shared.unless_over(sleep_until(until.into())).await?;
        } else {
            // Counted until a transaction succeeds.
            failures.count = 1;
        }
        match shared.unless_over(connect(login, failures.host)).await? {
            Ok(connection) => {
                info!(address = %connection.address, "connected to Redis");
                shared.set_obstacle(None);
                return Some(connection);
            }
            Err(error) => {
                if failures.count == 1 {
                    warn!(error = %Chain(&error), "Redis cannot be reached");
                }
                for (host, port) in &login.hosts {
                    endpoints.attempt(&format!("{host}:{port}"), None, false);
                }
                lost(shared, &error);
            }
        }
    }
}

fn given_up() -> Failure {
    Failure {
        class: "closed",
        reason: "the sink was closed before the server had answered".to_owned(),
        disposition: Disposition::Retryable,
    }
}
