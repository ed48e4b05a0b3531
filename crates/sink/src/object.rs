//! Sinks and factories of any kind, as objects: one virtual call for each record.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use walrelay_failure::{Failure, ToFailure};
use walrelay_lsn::Lsn;

use crate::{
    BatchingMode, Deliveries, Disposition, HeldRecord, Obstacle, Record, Retrying, SendError, Sink,
    SinkFactory, StreamStart, TransactionEnd,
};

/// A factory of sinks of any kind.
pub type AnySinkFactory = Box<dyn SinkFactory<Sink = Box<dyn Sink>, Error = SinkError>>;

/// The error of a sink of any kind that could not be created. Displays as the sink's own error.
pub struct SinkError {
    error: Box<dyn ToFailure + Send + Sync>,
    disposition: Disposition,
}

impl ToFailure for SinkError {
    fn to_failure(&self) -> Failure {
        self.error.to_failure()
    }
}

impl fmt::Debug for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl Error for SinkError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Makes an object of a factory.
pub fn any_factory<F: SinkFactory<Error: ToFailure> + 'static>(factory: F) -> AnySinkFactory {
    Box::new(Any(factory))
}

struct Any<F>(F);

impl<F: SinkFactory<Error: ToFailure>> SinkFactory for Any<F> {
    type Sink = Box<dyn Sink>;
    type Error = SinkError;

    fn create(
        &mut self,
        start: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Box<dyn Sink>, SinkError> {
        match self.0.create(start, deliveries) {
            Ok(sink) => Ok(Box::new(sink)),
            Err(error) => Err(SinkError {
                disposition: F::disposition(&error),
                error: Box::new(error),
            }),
        }
    }

    fn disposition(error: &SinkError) -> Disposition {
        error.disposition
    }
}

impl SinkFactory for AnySinkFactory {
    type Sink = Box<dyn Sink>;
    type Error = SinkError;

    fn create(
        &mut self,
        start: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Box<dyn Sink>, SinkError> {
        (**self).create(start, deliveries)
    }

    fn disposition(error: &SinkError) -> Disposition {
        error.disposition
    }
}

impl Sink for Box<dyn Sink> {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        (**self).try_send(record, seq)
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        (**self).withdraw(seq, behind)
    }

    fn poll(&mut self) {
        (**self).poll();
    }

    fn commit(&mut self, transaction: &TransactionEnd) {
        (**self).commit(transaction);
    }

    fn durable_before(&self) -> Option<Lsn> {
        (**self).durable_before()
    }

    fn has_modes(&self) -> bool {
        (**self).has_modes()
    }

    fn set_mode(&mut self, mode: BatchingMode) {
        (**self).set_mode(mode);
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        (**self).waiting_for()
    }

    fn retrying(&self) -> Option<Retrying> {
        (**self).retrying()
    }

    fn close(self: Box<Self>, grace: Duration) {
        (*self).close(grace);
    }
}
