//! A client for calls that block.

use std::sync::Arc;
use std::time::Duration;

use walrelay_sink_client::Apart;

use super::error::{ProtocolError, RedisError};
use super::link::Link;
use super::refusal::{code, is_forbidden_id};
use super::resp::{Reply, put_command};
use super::{Login, protocol, refused};

/// A client that keeps its connection from call to call. **Blocks**, also on a thread of a runtime.
pub(crate) struct BlockingClient {
    login: Arc<Login>,
    /// The longest wait for the replies to a call.
    pub(crate) patience: Duration,
    link: Option<Link>,
    runtime: Apart,
    /// The number of the host that is tried first.
    host: usize,
}

impl BlockingClient {
    pub(crate) fn new(login: Arc<Login>, patience: Duration) -> Result<Self, RedisError> {
        Ok(Self {
            login,
            patience,
            link: None,
            runtime: Apart::new()?,
            host: 0,
        })
    }

    /// Sends commands that read from `stream`, and returns their replies, if the server accepts writes.
    /// The connection of an earlier call may have ended meanwhile, so a failed call is tried once
    /// more, with the next host.
    pub(crate) fn read(
        &mut self,
        stream: &str,
        commands: &[Vec<&str>],
    ) -> Result<Vec<Reply>, RedisError> {
        let first = self.attempt(stream, commands);
        if first.is_ok() || matches!(first, Err(RedisError::Denied { .. })) {
            return first;
        }
        self.host = self.host.wrapping_add(1);
        self.attempt(stream, commands)
    }

    /// Does the same with one command, whose reply is no error.
    pub(crate) fn read_one(
        &mut self,
        stream: &str,
        command: Vec<&str>,
    ) -> Result<Reply, RedisError> {
        match self.read(stream, &[command])?.pop() {
            Some(Reply::Error(text)) => Err(self.refused(&text)),
            Some(reply) => Ok(reply),
            None => Err(self.protocol(ProtocolError("no reply"))),
        }
    }

    fn attempt(&mut self, stream: &str, commands: &[Vec<&str>]) -> Result<Vec<Reply>, RedisError> {
        let mut out = Vec::new();
        for command in commands {
            put_command(&mut out, command);
        }
        // An entry without an allowed id changes nothing, and a replica refuses it in another way.
        put_command(&mut out, &["XADD", stream, "0-0", "field", "value"]);
        let Self {
            login,
            patience,
            runtime,
            link,
            host,
        } = self;
        let (patience, host) = (*patience, *host);
        let exchange = async move || {
            let mut used = match link.take() {
                Some(open) => open,
                None => Link::connect(login, host).await?,
            };
            let open = used.connection_for(stream).await?;
            let mut replies = open.call(&out, commands.len() + 1, patience).await?;
            match replies.pop() {
                Some(Reply::Error(text)) if is_forbidden_id(&text) => {}
                // A master without memory or replicas.
                Some(Reply::Error(text)) if matches!(&*code(&text), "OOM" | "NOREPLICAS") => {}
                Some(Reply::Error(text)) => return Err(refused(&open.address, &text)),
                _ => return Err(open.protocol(ProtocolError("no refusal of the id 0-0"))),
            }
            *link = Some(used);
            Ok(replies)
        };
        runtime.run(exchange)?
    }

    /// Makes the error of a reply that has no meaning.
    pub(crate) fn protocol(&self, error: ProtocolError) -> RedisError {
        protocol(&self.login.servers.names(), error)
    }

    /// Makes the error of a stream that cannot be read.
    pub(crate) fn refused(&self, text: &[u8]) -> RedisError {
        let address = self.login.servers.names();
        refused(&address, text)
    }
}
