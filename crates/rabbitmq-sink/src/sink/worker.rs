//! The thread of a sink: connects, and publishes.

use std::sync::Arc;

use tracing::warn;
use walrelay_failure::Chain;
use walrelay_sink::Endpoints;
use walrelay_sink_client::{Failure, Reconnects};

use super::Shared;
use super::publisher::{Kept, Publisher, SPARE_CHANNELS};
use crate::client::declare::declare;
use crate::client::error::{ProtocolError, RabbitmqError};
use crate::client::{Connection, Login, connect, protocol};

/// Publishes until the sink is closed or broken. Returns why the records that are left have failed.
pub(super) async fn carry(login: &Login, shared: &Arc<Shared>) -> Failure {
    let mut reconnects = Reconnects::new("RabbitMQ", shared.settings.pauses);
    let mut kept = Kept::new();
    let mut endpoints = Endpoints::new(Arc::clone(&shared.stats));
    loop {
        let connect = async |first| connect_and_declare(login, shared, first).await;
        let connected = reconnects.connect(shared, &login.servers, &mut endpoints, connect);
        let Some(connection) = connected.await else {
            return Failure::closed();
        };
        let address = connection.address.clone();
        let mut publisher = Publisher::new(&connection, shared, &mut endpoints, &mut kept);
        let ended = publisher.run(connection).await;
        let error = match ended {
            Ok(failure) => return failure,
            Err(error) => error,
        };
        warn!(error = %Chain(&error), "the connection to RabbitMQ has ended");
        // The server may have them or not.
        publisher.send_all_again();
        if publisher.has_confirmed {
            reconnects.succeeded();
        }
        endpoints.attempt(&address, None, false);
        shared.lost(&error);
    }
}

async fn connect_and_declare(
    login: &Login,
    shared: &Shared,
    first: usize,
) -> Result<Connection, RabbitmqError> {
    let mut connection = connect(login, first).await?;
    if connection.channel_max <= SPARE_CHANNELS {
        let error = ProtocolError::Malformed("a limit of fewer than three channels");
        return Err(protocol(&connection.address, &error));
    }
    if let Some(wanted) = &shared.settings.declare {
        declare(&mut connection, wanted, login.servers.timeout).await?;
    }
    Ok(connection)
}
