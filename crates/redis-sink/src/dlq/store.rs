//! The dead letters of a server.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink::{AnySinkFactory, Parking, SinkStats, any_factory};
use walrelay_sink_kind::dead_letters::{
    DeadLetterStore, DeadLetters, DlqAddress, DlqFollower, DlqReplayer, Epoch, OpenEvents, ReadOpen,
};

use super::failure::failure;
use super::log::StreamLog;
use crate::client::Login;
use crate::client::error::RedisError;
use crate::sink::{RedisSinkFactory, Settings};

/// The longest wait for a reply about open dead letters. A stop waits for it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The streams of dead letters of a server.
#[derive(Debug, Clone)]
pub(crate) struct RedisDeadLetters {
    login: Arc<Login>,
    settings: Arc<Settings>,
}

impl RedisDeadLetters {
    pub(crate) fn new(login: Arc<Login>, settings: Arc<Settings>) -> Self {
        Self { login, settings }
    }

    fn factory(&self) -> AnySinkFactory {
        any_factory(RedisSinkFactory {
            login: Arc::clone(&self.login),
            settings: Arc::clone(&self.settings),
            stats: Arc::<SinkStats>::default(),
        })
    }

    fn log(&self, stream: &str, patience: Duration) -> Result<Option<StreamLog>, RedisError> {
        StreamLog::open(&self.login, stream, patience, self.factory())
    }
}

impl DeadLetterStore for RedisDeadLetters {
    fn open(
        &self,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<Box<dyn DeadLetters>>, Failure> {
        let log = self.log(topic, patience).map_err(|error| failure(&error))?;
        Ok(log.map(|log| Box::new(DlqReplayer::new(topic, log)) as Box<dyn DeadLetters>))
    }

    fn watch(
        &self,
        address: DlqAddress<'_>,
        parking: Arc<Parking>,
    ) -> Result<Box<dyn Any>, Failure> {
        let (store, stream) = (self.clone(), address.topic.to_owned());
        let open = move || {
            let log = store.log(&stream, OPEN_TIMEOUT);
            log.map_err(|error| failure(&error))
        };
        let follower = DlqFollower::start(address.slot, parking, open);
        let follower = follower.map_err(|source| {
            let address = "the thread that reads dead letters".to_owned();
            let error = walrelay_sink_client::ConnectError::Io { address, source };
            RedisError::from(error).to_failure()
        })?;
        Ok(Box::new(follower))
    }

    fn read_open(&self, address: DlqAddress<'_>, writes: bool, _: Epoch) -> ReadOpen {
        let (store, stream) = (self.clone(), address.topic.to_owned());
        let open = move || store.log(&stream, OPEN_TIMEOUT);
        // A relay that writes no dead letters needs no right to read them. A login that is refused says
        // nothing of them.
        let means_none = move |error: &RedisError| {
            !writes && matches!(error, RedisError::Denied { code, .. } if code == "NOPERM")
        };
        OpenEvents::reader(address.slot, open, StreamLog::read_all, means_none)
    }
}
