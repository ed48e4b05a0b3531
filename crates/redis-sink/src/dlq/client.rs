//! A client for calls that block.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use walrelay_sink::{Chain, FailureClass, SinkFailure, ToFailure as _};
use walrelay_sink_client::ConnectError;

use crate::client::error::{ProtocolError, RedisError};
use crate::client::link::Link;
use crate::client::refusal::{code, is_forbidden_id};
use crate::client::resp::{Reply, put_command};
use crate::client::{Login, protocol, refused};

/// A client that keeps its connection from call to call. **Blocks**, also on a thread of a runtime.
pub(super) struct BlockingClient {
    login: Arc<Login>,
    patience: Duration,
    link: Option<Link>,
    runtime: Runtime,
    /// The number of the host that is tried first.
    host: usize,
}

impl BlockingClient {
    pub(super) fn new(login: Arc<Login>, patience: Duration) -> Result<Self, RedisError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        Ok(Self {
            login,
            patience,
            link: None,
            runtime: runtime.map_err(of_this_process)?,
            host: 0,
        })
    }

    /// Sends commands that read from `stream`, and returns their replies, if the server takes writes.
    /// The connection of an earlier call may have ended meanwhile, so a failed call is tried once
    /// more, with the next host.
    pub(super) fn read(
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
        let mut exchange = async move || {
            let mut taken = match link.take() {
                Some(open) => open,
                None => Link::connect(login, host).await?,
            };
            let open = taken.of(stream).await?;
            let mut replies = open.call(&out, commands.len() + 1, patience).await?;
            match replies.pop() {
                Some(Reply::Error(text)) if is_forbidden_id(&text) => {}
                // A master without memory or replicas.
                Some(Reply::Error(text)) if matches!(&*code(&text), "OOM" | "NOREPLICAS") => {}
                Some(Reply::Error(text)) => return Err(refused(&open.address, &text)),
                _ => return Err(open.protocol(ProtocolError("no refusal of the id 0-0"))),
            }
            *link = Some(taken);
            Ok(replies)
        };
        // The caller's thread may belong to a runtime, which must not block.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let running =
                thread.spawn_scoped(scope, move || runtime.block_on(Box::pin(exchange())));
            let running = running.map_err(of_this_process)?;
            running
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Makes the error of a reply that has no meaning.
    pub(super) fn protocol(&self, error: ProtocolError) -> RedisError {
        protocol(&self.login.servers.names(), error)
    }

    /// Makes the error of a stream that cannot be read.
    pub(super) fn refused(&self, text: &[u8]) -> RedisError {
        let address = self.login.servers.names();
        refused(&address, text)
    }
}

fn of_this_process(source: std::io::Error) -> RedisError {
    let address = "this process".to_owned();
    ConnectError::Io { address, source }.into()
}

/// Returns the words for dead letters that cannot be read.
pub(super) fn failure(error: &RedisError) -> SinkFailure {
    let class = match error {
        RedisError::Connect(_) => return error.to_failure(),
        RedisError::Denied { .. } => FailureClass::Denied,
        RedisError::Protocol { .. }
        | RedisError::NotReady { .. }
        | RedisError::Sentinel { .. }
        | RedisError::Cluster { .. } => FailureClass::Unavailable,
    };
    let what = "the stream of dead letters cannot be read";
    SinkFailure::new("dlq-topic", class, what)
        .caused_by(Chain(error).to_string())
        .remedy(
            "let the user of [sink.redis] use XRANGE, XINFO STREAM and XADD with it, and see that its \
             server is no replica",
        )
}
