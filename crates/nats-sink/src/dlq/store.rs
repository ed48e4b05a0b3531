//! The dead letters of a server.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure as _};
use walrelay_sink::{AnySinkFactory, Parking, SinkStats, any_factory};
use walrelay_sink_client::ConnectError;
use walrelay_sink_kind::dead_letters::{
    DeadLetterStore, DeadLetters, DlqAddress, DlqFollower, DlqLog as _, DlqReplayer, Epoch,
    OpenEvents, ReadOpen,
};

use super::failure::is_denied;
use super::log::SubjectLog;
use crate::client::Login;
use crate::client::error::NatsError;
use crate::sink::{NatsSinkFactory, Settings};

/// The longest wait for an answer about open dead letters. A stop waits for it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The streams of dead letters of a server.
#[derive(Debug, Clone)]
pub(crate) struct NatsDeadLetters {
    login: Arc<Login>,
    settings: Arc<Settings>,
}

impl NatsDeadLetters {
    pub(crate) fn new(login: Arc<Login>, settings: Arc<Settings>) -> Self {
        Self { login, settings }
    }

    fn factory(&self) -> AnySinkFactory {
        any_factory(NatsSinkFactory {
            login: Arc::clone(&self.login),
            settings: Arc::clone(&self.settings),
            stats: Arc::<SinkStats>::default(),
        })
    }

    fn log(&self, subject: &str, patience: Duration) -> Result<Option<SubjectLog>, Failure> {
        SubjectLog::open(&self.login, subject, patience, self.factory())
    }
}

impl DeadLetterStore for NatsDeadLetters {
    fn open(
        &self,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<Box<dyn DeadLetters>>, Failure> {
        let log = self.log(topic, patience)?;
        Ok(log.map(|log| Box::new(DlqReplayer::new(topic, log)) as Box<dyn DeadLetters>))
    }

    fn watch(
        &self,
        address: DlqAddress<'_>,
        parking: Arc<Parking>,
    ) -> Result<Box<dyn Any>, Failure> {
        let (store, subject) = (self.clone(), address.topic.to_owned());
        let open = move || store.log(&subject, OPEN_TIMEOUT);
        let follower = DlqFollower::start(address.slot, parking, open);
        let follower = follower.map_err(|source| {
            let address = "the thread that reads dead letters".to_owned();
            NatsError::from(ConnectError::Io { address, source }).to_failure()
        })?;
        Ok(Box::new(follower))
    }

    fn read_open(&self, address: DlqAddress<'_>, writes: bool, _: Epoch) -> ReadOpen {
        let (store, subject) = (self.clone(), address.topic.to_owned());
        let open = move || store.log(&subject, OPEN_TIMEOUT);
        // A relay that writes no dead letters needs no right to read them.
        let means_none = move |failure: &Failure| !writes && is_denied(failure);
        OpenEvents::reader(address.slot, open, SubjectLog::read, means_none)
    }
}
