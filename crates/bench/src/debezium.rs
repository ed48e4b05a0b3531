//! Debezium Server, tuned, in a process of its own.

use walrelay_testkit::{Program, SlotWatch, debezium_properties, debezium_server};

use crate::harness::{Harness, OUTBOX};

/// The aim that Debezium Server is tuned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tuned {
    Throughput,
    Latency,
}

impl Tuned {
    fn lines(self) -> &'static str {
        match self {
            Self::Throughput => {
                "debezium.source.poll.interval.ms=5\n\
                 debezium.sink.kafka.producer.linger.ms=5\n\
                 debezium.sink.kafka.producer.batch.size=262144\n\
                 debezium.sink.kafka.producer.buffer.memory=134217728\n"
            }
            Self::Latency => {
                "debezium.source.poll.interval.ms=1\n\
                 debezium.sink.kafka.producer.linger.ms=0\n"
            }
        }
    }
}

/// Starts Debezium Server on an existing slot; returns when it reads the slot. Its records are like
/// walrelay's by default.
pub(crate) fn start(harness: &Harness, slot: &str, prefix: &str, tuned: Tuned) -> Program {
    let router = "debezium.transforms.outbox";
    let others = format!(
        "debezium.source.database.sslmode=disable\n\
         debezium.source.publication.autocreate.mode=disabled\n\
         debezium.source.max.batch.size=32768\n\
         debezium.source.max.queue.size=262144\n\
         debezium.source.offset.flush.interval.ms=1000\n\
         debezium.transforms=outbox\n\
         {router}.type=io.debezium.transforms.outbox.EventRouter\n\
         {router}.route.topic.replacement={prefix}$${{routedByValue}}\n\
         debezium.format.key=simplestring\n\
         debezium.format.value=simplestring\n\
         debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter\n\
         debezium.sink.kafka.producer.acks=all\n\
         debezium.sink.kafka.producer.enable.idempotence=true\n\
         {}",
        tuned.lines()
    );
    let brokers = harness.kafka.bootstrap_servers();
    let properties = debezium_properties(&harness.postgres, &brokers, slot, OUTBOX, &others);
    let options = ["-Xms2g", "-Xmx2g", "-XX:+UseParallelGC"];
    let mut command = debezium_server(&harness.file(slot), &properties, &options);
    let running = harness.start_program(&mut command);
    let watch = SlotWatch::new(&harness.postgres.url(), slot);
    running.until("reader of the slot", || {
        watch.read().is_some_and(|slot| slot.active_pid.is_some())
    });
    running
}
