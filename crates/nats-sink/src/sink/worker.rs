//! The thread of a sink: connects, and publishes.

use std::sync::Arc;
use std::time::Instant;

use tokio::select;
use tokio::time::sleep_until;
use tracing::{info, warn};
use walrelay_sink::{Chain, Disposition, Endpoints, Obstacle, lock};

use super::session::{Session, given_up, given_up_with_another, pause};
use super::{FOREVER, Failure, Shared};
use crate::client::error::NatsError;
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

async fn carry(login: &Login, shared: &Arc<Shared>) -> Failure {
    let mut failures = 0;
    let mut host = 0;
    let mut endpoints = Endpoints::new(Arc::clone(&shared.stats));
    loop {
        let connection = connected(login, host, shared, &mut failures, &mut endpoints).await;
        let Some(connection) = connection else {
            return given_up();
        };
        let address = connection.address.clone();
        endpoints.connected(&address);
        let mut session = Session::new(&connection, shared, &mut endpoints);
        let ended = session.run(connection).await;
        let error = match ended {
            Ok(failure) => {
                session.report_refused();
                return failure;
            }
            Err(error) => error,
        };
        warn!(error = %Chain(&error), "the connection to NATS has ended");
        if session.has_refused() {
            session.report_refused();
            return given_up_with_another();
        }
        // The server may have them or not.
        session.send_all_again();
        if session.has_stored {
            failures = 0;
        } else {
            // Another server of the cluster may be able to.
            host += 1;
        }
        endpoints.attempt(&address, None, false);
        lost(shared, &error);
    }
}

/// Shows that there is no connection.
fn lost(shared: &Shared, error: &NatsError) {
    let mut state = lock(&shared.state);
    state.refusal = None;
    state.obstacle = Some(Obstacle {
        what: Chain(error).to_string(),
        disposition: error.disposition(),
        remedy: None,
    });
}

/// Connects, as often as it needs, with a pause after each of the `failures`. `None`: the sink was
/// closed, and its grace is over or it has no record.
async fn connected(
    login: &Login,
    host: usize,
    shared: &Arc<Shared>,
    failures: &mut u32,
    endpoints: &mut Endpoints,
) -> Option<Connection> {
    let mut attempt = Box::pin(connect(login, host));
    let after = |failures: u32| Instant::now() + pause(shared.settings.pauses, failures);
    let mut next = (*failures > 0).then(|| after(*failures - 1));
    loop {
        let closing = lock(&shared.state).closing;
        let now = Instant::now();
        if closing.is_some_and(|at| at <= now || shared.window.in_flight() == 0) {
            return None;
        }
        let end = closing.unwrap_or(now + FOREVER);
        select! {
            connected = &mut attempt, if next.is_none() => {
                // Counted until a message is stored.
                *failures = failures.saturating_add(1);
                match connected {
                    Ok(connection) => {
                        shared.set_obstacle(None);
                        info!(address = %connection.address, "connected to NATS");
                        return Some(connection);
                    }
                    Err(error) => {
                        if *failures == 1 {
                            warn!(error = %Chain(&error), "NATS cannot be reached");
                        }
                        for (host, port) in &login.hosts {
                            endpoints.attempt(&format!("{host}:{port}"), None, false);
                        }
                        lost(shared, &error);
                        next = Some(after(*failures - 1));
                        attempt = Box::pin(connect(login, host));
                    }
                }
            }
            () = sleep_until(next.unwrap_or(end).min(end).into()) => {
                next = next.filter(|next| *next > Instant::now());
            }
            () = shared.wake.notified() => {}
        }
    }
}
