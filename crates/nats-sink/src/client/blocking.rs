//! A client for requests that block.

use std::sync::Arc;
use std::time::Duration;

use walrelay_sink_client::Apart;

use super::error::NatsError;
use super::exchange::{Answer, Exchange, ExchangeError};
use super::message::put_request;
use super::{Login, connect};

/// A client that keeps its connection from call to call. **Blocks**, also on a thread of a runtime.
pub(crate) struct BlockingClient {
    login: Arc<Login>,
    /// The longest wait for a sign of the server.
    pub(crate) patience: Duration,
    exchange: Option<Exchange>,
    runtime: Apart,
    /// The number of the host that is tried first.
    host: usize,
}

impl BlockingClient {
    pub(crate) fn new(login: Arc<Login>, patience: Duration) -> Result<Self, NatsError> {
        Ok(Self {
            login,
            patience,
            exchange: None,
            runtime: Apart::new()?,
            host: 0,
        })
    }

    /// Returns host and port of the server, or of all that may be one.
    pub(crate) fn address(&self) -> String {
        let names = || self.login.servers.names();
        let exchange = self.exchange.as_ref();
        exchange.map_or_else(names, |open| open.address().to_owned())
    }

    /// Sends requests to a subject, and returns the answers to them in this order. The connection of an
    /// earlier call may have ended meanwhile, so a failed call is made once more, with the next host.
    pub(crate) fn request_all(
        &mut self,
        subject: &str,
        bodies: &[Vec<u8>],
    ) -> Result<Vec<Answer>, ExchangeError> {
        let first = self.attempt(subject, bodies);
        if !matches!(first, Err(ExchangeError::Connection(_))) {
            return first;
        }
        self.host = self.host.wrapping_add(1);
        self.attempt(subject, bodies)
    }

    fn attempt(&mut self, subject: &str, bodies: &[Vec<u8>]) -> Result<Vec<Answer>, ExchangeError> {
        let Self {
            login,
            patience,
            exchange,
            runtime,
            host,
        } = self;
        let (patience, host) = (*patience, *host);
        let request = async move || {
            let mut open = match exchange.take() {
                Some(open) => open,
                None => Exchange::new(connect(login, host).await?),
            };
            let put = |out: &mut Vec<u8>, number: usize, reply: &str| {
                let body = bodies.get(number).map_or(&[][..], Vec::as_slice);
                put_request(out, subject, reply, body);
            };
            let count = bodies.len();
            let answers = open.request_all(count, patience, |_| true, put).await?;
            *exchange = Some(open);
            Ok(answers)
        };
        runtime.run(request).map_err(NatsError::from)?
    }
}
