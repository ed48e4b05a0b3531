//! The thread of a sink: connects, and publishes.

use std::sync::Arc;

use tracing::warn;
use walrelay_failure::Chain;
use walrelay_sink::Endpoints;
use walrelay_sink_client::{Failure, Reconnects};

use super::Shared;
use super::ends::Comparison;
use super::sequences::Sequences;
use super::session::Session;
use crate::client::exchange::Exchange;
use crate::client::{Login, connect};

/// Publishes until the sink is closed or broken. Returns why the records that are left have failed.
pub(super) async fn carry(login: &Login, shared: &Arc<Shared>, source: Option<String>) -> Failure {
    let mut reconnects = Reconnects::new("NATS", shared.settings.pauses);
    let mut endpoints = Endpoints::new(Arc::clone(&shared.stats));
    let mut sequences = Sequences::new(&shared.stats);
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
            Some(true) => {}
        }
        let connection = exchange.into_connection();
        let address = connection.address.clone();
        let mut session = Session::new(
            &connection,
            shared,
            source.as_deref(),
            &mut endpoints,
            &mut sequences,
        );
        let ended = session.run(connection).await;
        let error = match ended {
            Ok(failure) => return failure,
            Err(error) => error,
        };
        warn!(error = %Chain(&error), "the connection to NATS has ended");
        // The server may have them or not.
        session.send_all_again();
        if session.has_stored {
            reconnects.succeeded();
        } else {
            // Another server of the cluster may be able to.
            reconnects.next_host();
        }
        endpoints.attempt(&address, None, false);
        shared.lost(&error);
    }
}
