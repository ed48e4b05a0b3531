use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walrelay_sink::{
    Deliveries, DeliveryError, Disposition, Record, SendError, Sink as _, SinkFactory as _,
};

use crate::{KafkaConfig, KafkaError, KafkaSink, KafkaSinkFactory};

/// Sends one record after another, each acknowledged before the next, with the relay's own producer.
pub(super) struct Sender {
    factory: KafkaSinkFactory,
    /// Made anew after a failure: a sink takes nothing after one.
    sink: Option<(KafkaSink, Arc<Answers>)>,
    seq: u64,
}

/// Why a record was not acknowledged.
pub(super) enum NotSent {
    /// It is refused, and will be until somebody changes something.
    Refused(DeliveryError),
    /// Whether it arrived is not known. The last reason heard, if any.
    NoAnswer(Option<DeliveryError>),
    /// There is no producer.
    Client(KafkaError),
}

#[derive(Default)]
struct Answers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    answer: Option<(u64, Result<(), DeliveryError>)>,
    capacity: bool,
}

impl Sender {
    pub(super) fn new(config: &KafkaConfig) -> Self {
        Self {
            factory: KafkaSinkFactory::new(config.clone()),
            sink: None,
            seq: 0,
        }
    }

    /// **Blocks** until the record is acknowledged or refused, for `patience` at most.
    pub(super) fn send(&mut self, record: &Record<'_>, patience: Duration) -> Result<(), NotSent> {
        let deadline = Instant::now() + patience;
        let mut heard = None;
        loop {
            let error = match self.attempt(record, deadline) {
                Ok(()) => return Ok(()),
                Err(NotSent::Refused(error)) => error,
                Err(NotSent::NoAnswer(_)) => {
                    self.sink = None;
                    return Err(NotSent::NoAnswer(heard));
                }
                Err(error) => return Err(error),
            };
            self.sink = None;
            // Not the record's fault, and not for ever.
            if error.poison.is_some() || error.disposition != Disposition::Retryable {
                return Err(NotSent::Refused(error));
            }
            if Instant::now() >= deadline {
                return Err(NotSent::NoAnswer(Some(error)));
            }
            heard = Some(error);
        }
    }

    fn attempt(&mut self, record: &Record<'_>, deadline: Instant) -> Result<(), NotSent> {
        if self.sink.is_none() {
            let answers = Arc::new(Answers::default());
            let deliveries: Arc<dyn Deliveries> = Arc::clone(&answers) as _;
            let sink = self.factory.create(deliveries).map_err(NotSent::Client)?;
            self.sink = Some((sink, answers));
        }
        let Some((sink, answers)) = &mut self.sink else {
            return Err(NotSent::NoAnswer(None));
        };
        self.seq += 1;
        let seq = self.seq;
        loop {
            match sink.try_send(record, seq) {
                Ok(()) => break,
                // The topic is being created.
                Err(SendError::Full) => answers
                    .wait(deadline, |state| {
                        std::mem::take(&mut state.capacity).then_some(())
                    })
                    .ok_or(NotSent::NoAnswer(None))?,
                Err(SendError::Refused(error)) => return Err(NotSent::Refused(error)),
            }
        }
        answers
            .wait(deadline, |state| {
                state
                    .answer
                    .take_if(|(of, _)| *of == seq)
                    .map(|(_, answer)| answer)
            })
            .ok_or(NotSent::NoAnswer(None))?
            .map_err(NotSent::Refused)
    }
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<T>(
        &self,
        deadline: Instant,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(taken) = take(&mut state) {
                return Some(taken);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn answer(&self, seq: u64, answer: Result<(), DeliveryError>) {
        self.lock().answer = Some((seq, answer));
        self.changed.notify_all();
    }
}

impl Deliveries for Answers {
    fn delivered(&self, seq: u64) {
        self.answer(seq, Ok(()));
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        self.answer(seq, Err(error));
    }

    fn capacity(&self) {
        self.lock().capacity = true;
        self.changed.notify_all();
    }
}
