use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use walrelay_testkit::{PATIENCE, Reports};

use super::*;

/// Returns the report of each record, of which there must be one.
fn single_reports(reports: &Reports) -> BTreeMap<u64, Result<(), DeliveryError>> {
    let state = reports.state();
    assert!(state.repeated.is_empty(), "twice: {:?}", state.repeated);
    state.outcomes
}

/// The next step of a scripted writer.
enum Step {
    Take,
    Fail(io::ErrorKind),
}

/// A writer that waits for a step before each write. When the sender of steps is dropped, it takes
/// everything.
struct Scripted {
    steps: Receiver<Step>,
    /// Notified before each write waits for its step.
    started: SyncSender<()>,
    written: Arc<Mutex<Vec<u8>>>,
    unflushed: Vec<u8>,
}

impl Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.started.try_send(());
        match self.steps.recv() {
            Ok(Step::Take) | Err(_) => {
                self.unflushed.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            Ok(Step::Fail(kind)) => Err(kind.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.written.lock().unwrap().append(&mut self.unflushed);
        Ok(())
    }
}

struct Bench {
    sink: StdoutSink,
    reports: Arc<Reports>,
    steps: SyncSender<Step>,
    started: Receiver<()>,
    written: Arc<Mutex<Vec<u8>>>,
}

fn bench((records, bytes): (u64, u64)) -> Bench {
    let (steps, of_writer) = sync_channel(64);
    let (write_started, started) = sync_channel(64);
    let written = Arc::new(Mutex::new(Vec::new()));
    let out = Scripted {
        steps: of_writer,
        started: write_started,
        written: Arc::clone(&written),
        unflushed: Vec::new(),
    };
    let reports = Arc::new(Reports::default());
    let sink = StdoutSink::start(out, reports.clone(), Window::new(records, bytes)).unwrap();
    Bench {
        sink,
        reports,
        steps,
        started,
        written,
    }
}

impl Bench {
    fn send(&mut self, value: &[u8], seq: u64) -> Result<(), SendError> {
        self.sink.try_send(&record(value), seq)
    }

    fn step(&self, step: Step) {
        self.steps.send(step).unwrap();
    }
}

/// Records and bytes of a window that is never full.
const ROOMY: (u64, u64) = (1000, 1 << 20);

fn record(value: &[u8]) -> Record<'_> {
    Record {
        topic: "orders",
        key: Some(b"k"),
        value: Some(value),
        ..Record::default()
    }
}

/// Returns the values of the lines written so far, in order.
fn values(written: &Mutex<Vec<u8>>) -> Vec<String> {
    let written = written.lock().unwrap();
    std::str::from_utf8(&written)
        .unwrap()
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["value"].as_str().unwrap().to_owned()
        })
        .collect()
}

#[test]
fn delivered_means_written_and_flushed() {
    let mut bench = bench(ROOMY);
    bench.send(b"0", 0).unwrap();
    bench.started.recv_timeout(PATIENCE).unwrap();
    // The writer has taken the batch and has not written it.
    assert!(single_reports(&bench.reports).is_empty());
    bench.step(Step::Take);
    bench.reports.wait_for(1);
    assert_eq!(values(&bench.written), ["0"]);
    assert_eq!(single_reports(&bench.reports)[&0], Ok(()));
    drop(bench.sink);
    assert_eq!(single_reports(&bench.reports).len(), 1);
}

#[test]
fn a_slow_writer_pushes_back_and_order_is_kept() {
    for limits in [(4, ROOMY.1), (ROOMY.0, 300)] {
        let mut bench = bench(limits);
        bench.send(b"0", 0).unwrap();
        bench.started.recv_timeout(PATIENCE).unwrap();
        // The writer waits with record 0, so the queue fills.
        let mut next = 1_u64;
        let full = loop {
            let value = next.to_string();
            match bench.send(value.as_bytes(), next) {
                Ok(()) => next += 1,
                Err(error) => break error,
            }
            assert!(next < 100, "no back-pressure");
        };
        assert_eq!(full, SendError::Full);
        assert_eq!(
            bench.reports.capacity_calls(),
            0,
            "capacity was called without room"
        );
        bench.step(Step::Take);
        bench.reports.wait(|state| state.capacity >= 1);
        let value = next.to_string();
        bench.send(value.as_bytes(), next).unwrap();
        drop(bench.steps);
        Box::new(bench.sink).close(PATIENCE);
        let expected: Vec<String> = (0..=next).map(|seq| seq.to_string()).collect();
        assert_eq!(values(&bench.written), expected);
        let outcomes = single_reports(&bench.reports);
        assert_eq!(outcomes.len() as u64, next + 1);
        assert!(outcomes.values().all(Result::is_ok));
    }
}

#[test]
fn a_line_longer_than_the_queue_goes_through() {
    let mut bench = bench((ROOMY.0, 10));
    drop(bench.steps);
    bench.sink.try_send(&record(&[b'x'; 5000]), 0).unwrap();
    Box::new(bench.sink).close(PATIENCE);
    assert_eq!(values(&bench.written), ["x".repeat(5000)]);
    assert_eq!(single_reports(&bench.reports).len(), 1);
}

#[test]
fn after_a_broken_pipe_accepted_records_fail_and_later_ones_are_refused() {
    let mut bench = bench((3, ROOMY.1));
    bench.send(b"0", 0).unwrap();
    bench.started.recv_timeout(PATIENCE).unwrap();
    bench.send(b"1", 1).unwrap();
    bench.send(b"2", 2).unwrap();
    assert_eq!(bench.send(b"3", 3), Err(SendError::Full));
    bench.step(Step::Fail(io::ErrorKind::BrokenPipe));
    // `capacity` wakes the caller, whose next record is refused.
    bench
        .reports
        .wait(|state| state.outcomes.len() == 3 && state.capacity == 1);
    let Err(SendError::Refused(refused)) = bench.send(b"3", 3) else {
        panic!("a broken sink accepted a record");
    };
    assert_eq!(refused.disposition, Disposition::Fatal);
    assert!(refused.reason.contains("gone away"), "{refused}");
    assert_eq!(&*refused.topic, "orders");
    Box::new(bench.sink).close(PATIENCE);
    let outcomes = single_reports(&bench.reports);
    assert_eq!(outcomes.len(), 3, "a refused record was reported");
    assert!(
        outcomes
            .values()
            .all(|outcome| *outcome == Err(refused.clone()))
    );
    assert!(values(&bench.written).is_empty());
}

#[test]
fn an_error_after_a_success_keeps_the_success() {
    let mut bench = bench(ROOMY);
    bench.send(b"0", 0).unwrap();
    bench.step(Step::Take);
    bench.reports.wait(|state| state.is_delivered(0));
    bench.send(b"1", 1).unwrap();
    bench.step(Step::Fail(io::ErrorKind::StorageFull));
    Box::new(bench.sink).close(PATIENCE);
    let outcomes = single_reports(&bench.reports);
    assert_eq!(outcomes[&0], Ok(()));
    assert!(matches!(&outcomes[&1], Err(error)
        if error.disposition == Disposition::Fatal));
}

#[test]
fn close_gives_up_a_writer_that_hangs() {
    let mut bench = bench(ROOMY);
    bench.send(b"0", 0).unwrap();
    bench.started.recv_timeout(PATIENCE).unwrap();
    bench.send(b"1", 1).unwrap();
    Box::new(bench.sink).close(Duration::from_millis(10));
    let outcomes = single_reports(&bench.reports);
    assert_eq!(outcomes.len(), 2, "left unreported: {outcomes:?}");
    assert!(outcomes.values().all(|outcome| matches!(outcome, Err(error)
        if error.disposition == Disposition::Retryable)));
    // The write returns later. The thread drops the writer last.
    drop(bench.steps);
    while bench.started.recv_timeout(PATIENCE).is_ok() {}
    assert_eq!(
        values(&bench.written),
        ["0"],
        "given up, and written nevertheless"
    );
    assert_eq!(single_reports(&bench.reports), outcomes, "reported twice");
}

#[test]
fn dropping_reports_what_was_accepted() {
    let mut bench = bench(ROOMY);
    for seq in 0..10 {
        bench.send(b"x", seq).unwrap();
    }
    bench.started.recv_timeout(PATIENCE).unwrap();
    drop(bench.sink);
    assert_eq!(single_reports(&bench.reports).len(), 10);
}

#[test]
fn closing_an_idle_sink_does_not_wait() {
    let Bench { sink, reports, .. } = bench(ROOMY);
    let before = Instant::now();
    Box::new(sink).close(Duration::from_secs(3600));
    assert!(before.elapsed() < PATIENCE);
    assert!(single_reports(&reports).is_empty());
}
