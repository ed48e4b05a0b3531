//! [`Counting`]: wraps sinks and counts the records that they take and deliver.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use walrelay_lsn::Lsn;
use walrelay_sink::{
    BatchingMode, Deliveries, DeliveryError, Disposition, HeldRecord, Obstacle, Record, Refusal,
    Retrying, SendError, Sink, SinkFactory, StreamStart, TransactionEnd,
};

/// Counts records. Called from any thread.
pub(crate) trait Count: Debug + Send + Sync + 'static {
    /// Counts a new sink. Records that were not acknowledged are sent to it again.
    fn made(&self) {}

    /// Counts a record that the sink took.
    fn sent(&self, _record: &Record<'_>) {}

    /// Counts a record that is acknowledged.
    fn delivered(&self);
}

/// A factory that wraps the sinks of another factory.
#[derive(Debug)]
pub(crate) struct Counting<F, C> {
    factory: F,
    count: Arc<C>,
}

impl<F, C> Counting<F, C> {
    pub(crate) fn new(factory: F, count: Arc<C>) -> Self {
        Self { factory, count }
    }
}

impl<F: SinkFactory, C: Count> SinkFactory for Counting<F, C> {
    type Sink = CountedSink<F::Sink, C>;
    type Error = F::Error;

    fn create(
        &mut self,
        start: Option<&StreamStart>,
        inner: Arc<dyn Deliveries>,
    ) -> Result<Self::Sink, F::Error> {
        self.count.made();
        let count = Arc::clone(&self.count);
        let sink = self
            .factory
            .create(start, Arc::new(Reports { inner, count }))?;
        let count = Arc::clone(&self.count);
        Ok(CountedSink { sink, count })
    }

    fn disposition(error: &F::Error) -> Disposition {
        F::disposition(error)
    }
}

#[derive(Debug)]
pub(crate) struct CountedSink<S, C> {
    sink: S,
    count: Arc<C>,
}

impl<S: Sink, C: Count> Sink for CountedSink<S, C> {
    fn try_send(&mut self, record: &Record<'_>, seq: u64) -> Result<(), SendError> {
        self.sink.try_send(record, seq)?;
        self.count.sent(record);
        Ok(())
    }

    fn withdraw(&mut self, seq: u64, behind: bool) -> Vec<(u64, HeldRecord)> {
        self.sink.withdraw(seq, behind)
    }

    fn poll(&mut self) {
        self.sink.poll();
    }

    fn commit(&mut self, transaction: &TransactionEnd) {
        self.sink.commit(transaction);
    }

    fn durable_before(&self) -> Option<Lsn> {
        self.sink.durable_before()
    }

    fn has_modes(&self) -> bool {
        self.sink.has_modes()
    }

    fn set_mode(&mut self, mode: BatchingMode) {
        self.sink.set_mode(mode);
    }

    fn waiting_for(&mut self) -> Option<Obstacle> {
        self.sink.waiting_for()
    }

    fn retrying(&self) -> Option<Retrying> {
        self.sink.retrying()
    }

    fn close(self: Box<Self>, grace: Duration) {
        Box::new(self.sink).close(grace);
    }
}

struct Reports<C> {
    inner: Arc<dyn Deliveries>,
    count: Arc<C>,
}

impl<C: Count> Deliveries for Reports<C> {
    fn delivered(&self, seq: u64) {
        // Count first: the receiver of the last report reads the count next.
        self.count.delivered();
        self.inner.delivered(seq);
    }

    fn failed(&self, seq: u64, error: DeliveryError) {
        self.inner.failed(seq, error);
    }

    fn refused(&self, seq: u64, refusal: Refusal) {
        self.inner.refused(seq, refusal);
    }

    fn capacity(&self) {
        self.inner.capacity();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use super::*;

    /// All calls, in order.
    #[derive(Debug, Default)]
    struct Log(Mutex<Vec<String>>);

    impl Log {
        fn add(&self, line: impl Into<String>) {
            self.0.lock().unwrap().push(line.into());
        }
    }

    impl Count for Log {
        fn made(&self) {
            self.add("made");
        }
        fn sent(&self, record: &Record<'_>) {
            self.add(format!("sent to {}", record.topic));
        }
        fn delivered(&self) {
            self.add("counted");
        }
    }

    impl Deliveries for Log {
        fn delivered(&self, seq: u64) {
            self.add(format!("delivered {seq}"));
        }
        fn failed(&self, seq: u64, _: DeliveryError) {
            self.add(format!("failed {seq}"));
        }
        fn capacity(&self) {
            self.add("capacity");
        }
    }

    /// A sink that takes one record.
    struct One(Arc<dyn Deliveries>, bool);

    impl Sink for One {
        fn try_send(&mut self, _: &Record<'_>, seq: u64) -> Result<(), SendError> {
            if std::mem::replace(&mut self.1, true) {
                return Err(SendError::Full);
            }
            self.0.delivered(seq);
            self.0.capacity();
            Ok(())
        }
        fn close(self: Box<Self>, _: Duration) {}
    }

    struct Ones;

    impl SinkFactory for Ones {
        type Sink = One;
        type Error = Infallible;

        fn create(
            &mut self,
            _: Option<&StreamStart>,
            deliveries: Arc<dyn Deliveries>,
        ) -> Result<One, Infallible> {
            Ok(One(deliveries, false))
        }
        fn disposition(error: &Infallible) -> Disposition {
            match *error {}
        }
    }

    #[test]
    fn only_taken_and_acknowledged_records_are_counted() {
        let log = Arc::new(Log::default());
        let mut factory = Counting::new(Ones, Arc::clone(&log));
        let record = Record {
            topic: "t",
            ..Record::default()
        };
        for _ in 0..2 {
            let reports = Arc::clone(&log) as Arc<dyn Deliveries>;
            let mut sink = factory.create(None, reports).unwrap();
            sink.try_send(&record, 7).unwrap();
            assert!(sink.try_send(&record, 8).is_err());
        }
        let once = ["made", "counted", "delivered 7", "capacity", "sent to t"];
        assert_eq!(*log.0.lock().unwrap(), [once, once].concat());
    }
}
