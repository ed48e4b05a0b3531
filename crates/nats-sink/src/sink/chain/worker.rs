//! The thread of a sink: connects, and publishes batches.

use std::sync::Arc;
use std::time::Instant;

use tokio::time::sleep_until;
use tracing::warn;
use walrelay_failure::Chain as Causes;
use walrelay_sink::Endpoints;
use walrelay_sink_client::{FOREVER, Failure, Reconnects};

use super::{Chain, Shared, Stop};
use crate::client::error::NatsError;
use crate::client::exchange::Exchange;
use crate::client::{Login, connect};
use crate::sink::ends::Comparison;

/// Publishes until the sink is closed or broken. Returns why the records that are left have failed.
pub(in crate::sink) async fn carry(
    login: &Login,
    shared: &Shared,
    stream: String,
    source: Option<String>,
) -> Failure {
    let mut reconnects = Reconnects::new("NATS", shared.settings.pauses);
    let mut endpoints = Endpoints::new(Arc::clone(&shared.stats));
    // What is known of the stream outlives a connection.
    let mut chain = Chain::new(shared, stream, source);
    let mut comparison = Comparison::new(&shared.stats, shared.settings.ack);
    loop {
        let connect = async |first| connect(login, first).await;
        let connected = reconnects.connect(shared, &login.servers, &mut endpoints, connect);
        let Some(connection) = connected.await else {
            return Failure::closed();
        };
        let mut exchange = Exchange::new(connection).watched(&shared.stats);
        match shared.unless_over(comparison.make(&mut exchange)).await {
            None => return Failure::closed(),
            Some(false) => continue,
            Some(true) => chain.take_end(),
        }
        let mut has_stored = false;
        let session = session(
            &mut exchange,
            &mut chain,
            &mut endpoints,
            &mut reconnects,
            &mut has_stored,
        );
        let error = match session.await {
            Ok(failure) => return failure,
            Err(error) => error,
        };
        warn!(error = %Causes(&error), "the connection to NATS has ended");
        if !has_stored {
            // Another server of the cluster may be able to.
            reconnects.next_host();
        }
        endpoints.attempt(exchange.address(), None, false);
        shared.state().records.release_all();
        shared.lost(&error);
    }
}

/// Publishes until the sink is closed or broken (`Ok`), or the connection breaks.
async fn session(
    exchange: &mut Exchange,
    chain: &mut Chain<'_>,
    endpoints: &mut Endpoints,
    reconnects: &mut Reconnects,
    has_stored: &mut bool,
) -> Result<Failure, NatsError> {
    let shared = chain.shared;
    loop {
        if shared.is_over() {
            return Ok(Failure::closed());
        }
        let (is_empty, is_refused) = {
            let records = &shared.state().records;
            (records.waiting().is_empty(), records.has_refused())
        };
        // All records are in order, and the refused one may take later ones along.
        if (is_empty || is_refused) && chain.has_asked() {
            let closing = shared.state().closing;
            let end = closing.unwrap_or_else(|| Instant::now() + FOREVER);
            tokio::select! {
                error = exchange.ended() => return Err(error),
                () = shared.wake.notified() => {}
                () = sleep_until(end.into()) => {}
            }
            continue;
        }
        let began = Instant::now();
        let Some(advanced) = shared.unless_over(chain.advance(exchange)).await else {
            return Ok(Failure::closed());
        };
        match advanced {
            Ok(()) => {
                *has_stored |= !is_empty;
                reconnects.succeeded();
                let mut state = shared.state();
                state.obstacle = None;
                state.records.release_all();
                drop(state);
                endpoints.attempt(exchange.address(), Some(began.elapsed()), false);
            }
            Err(Stop::Connection(error)) => return Err(error),
            Err(Stop::Broken(failure)) => return Ok(failure),
            Err(Stop::Pause(obstacle)) => {
                let known = shared.state().obstacle.replace(obstacle.clone());
                if known.as_ref() != Some(&obstacle) {
                    warn!(
                        reason = obstacle.what,
                        "waiting for NATS to accept an event"
                    );
                }
                endpoints.attempt(exchange.address(), Some(began.elapsed()), true);
                let until = reconnects.failed();
                let what = &obstacle.what;
                shared.state().records.hold_all(what, Instant::now(), until);
                let pause = sleep_until(until.into());
                if shared.unless_over(pause).await.is_none() {
                    return Ok(Failure::closed());
                }
            }
        }
    }
}
