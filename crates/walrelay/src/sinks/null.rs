//! A sink that discards every record and acknowledges it at once.
//!
//! It loses events, so it must never become a `sink.kind`. It is used over temporary copies of
//! slots and snapshots only: in `bench`, `replay --dry-run`, and where rows are compared with topics
//! (`cutover verify`, `verify-topic`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use walrelay_sink::{Deliveries, Disposition, Record, SendError, Sink, SinkFactory, StreamStart};

pub(crate) struct NullSink {
    deliveries: Arc<dyn Deliveries>,
}

impl Sink for NullSink {
    fn try_send(&mut self, _: &Record<'_>, seq: u64) -> Result<(), SendError> {
        self.deliveries.delivered(seq);
        Ok(())
    }

    fn close(self: Box<Self>, _: Duration) {}
}

#[derive(Debug)]
pub(crate) struct NullSinkFactory;

impl SinkFactory for NullSinkFactory {
    type Sink = NullSink;
    type Error = Infallible;

    fn create(
        &mut self,
        _: Option<&StreamStart>,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<NullSink, Infallible> {
        Ok(NullSink { deliveries })
    }

    fn disposition(error: &Infallible) -> Disposition {
        match *error {}
    }
}
