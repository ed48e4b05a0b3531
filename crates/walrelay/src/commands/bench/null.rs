//! A sink that throws everything away and says at once that it is durable.
//!
//! It is no `sink.kind` and never will be: it loses events. It reads temporary copies of slots, in `bench` and in
//! `replay --dry-run`, and nothing else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{Deliveries, Disposition, Record, SendError, Sink, SinkFactory};

use crate::cli::Failure;
use crate::failures::SinkFailure;

pub(in crate::commands) struct NullSink {
    deliveries: Arc<dyn Deliveries>,
}

impl Sink for NullSink {
    fn try_send(&mut self, _: &Record<'_>, seq: u64) -> Result<(), SendError> {
        self.deliveries.delivered(seq);
        Ok(())
    }

    fn close(self, _: Duration) {}
}

#[derive(Debug)]
pub(in crate::commands) struct NullSinkFactory;

impl SinkFactory for NullSinkFactory {
    type Sink = NullSink;
    type Error = Infallible;

    fn create(&mut self, deliveries: Arc<dyn Deliveries>) -> Result<NullSink, Infallible> {
        Ok(NullSink { deliveries })
    }

    fn disposition(error: &Infallible) -> Disposition {
        match *error {}
    }
}

impl SinkFailure for Infallible {
    fn failure(self) -> Failure {
        match self {}
    }
}
