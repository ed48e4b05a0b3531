//! The interface between a relay and where records go: records out, delivery reports in.
//!
//! # Contents
//! - [`Record`], [`RecordKind`], [`Header`]: one message, borrowed from the buffer that holds its bytes.
//!   [`HeldRecord`]: an owned copy, for a sink that cannot send the record yet.
//! - [`Sink`], [`SinkFactory`]: accept records. [`SendError`]: why a record was not accepted.
//!   [`AnySinkFactory`]: both as objects, for a kind that is known at run time.
//!   [`Obstacle`], [`Retrying`]: what records wait for. [`TransactionEnd`]: tells a sink where a transaction of the source ends. [`StreamStart`]: tells
//!   it where the stream begins.
//! - [`Deliveries`]: receives the delivery reports, from any thread and in any order.
//! - [`DeliveryError`], [`Disposition`], [`Poison`]: why a record was not delivered and how to
//!   react. [`Refusal`]: the same of one record that the server refuses while it takes others.
//! - [`Window`]: bounds the records and bytes in flight. [`KeyQueues`]: for sinks that send each
//!   record by itself, and send it again alone. [`queue_key`]: what is kept in order.
//! - [`SinkStats`]: a sink's figures for metrics. [`Endpoints`]: those of its servers. [`EventSizes`]: those of sizes.
//!   [`NearLimit`]: an event that is almost too large.
//!   [`OpenRequest`]: what is in flight to one, to know whether it is silent.
//!   [`CertificateFault`]: why the certificate of a server is refused. [`ConnectFailure`]: why one is not reached. [`Loss`]: acknowledged events that a
//!   destination has lost.
//! - [`dlq_headers`], [`dlq_shape`], [`EventPosition`]: the format of a dead letter. [`Parking`]: the keys whose
//!   events must follow an open dead letter.
//! - [`id_text`]: an event's id for logs. [`lock`]: locks a mutex; [`in_current_span`]: keeps the pipeline of log lines on a new thread;
//!   [`run_program`]: runs another program to its end. All three are for the crates above too.
//! - [`clock_offset`]: compares the clock of a server with this machine's; [`micros_now`],
//!   [`ServerClocks`].
//!
//! # Invariants
//! - [`Sink::try_send`] never blocks. It copies what it must keep of the record and allocates only
//!   what its queue needs.
//! - Every **accepted** record is reported exactly once, delivered, failed or refused, also when the
//!   sink is dropped, unless it is taken back with a refused one of its key. "Delivered" means durable by the sink's own standard (Kafka: acknowledged with
//!   `acks=all`), never "queued".
//! - Records of the same key reach the destination in the order in which they were accepted.
//! - Nothing here prints a record's key, value or headers: [`Record`]'s `Debug` shows lengths.

#![forbid(unsafe_code)]

mod certificate_fault;
mod clock;
mod connect_failure;
mod delivery;
pub mod dlq_headers;
pub mod dlq_shape;
mod endpoints;
mod event_id;
mod event_origin;
mod event_position;
mod held_record;
mod in_span;
mod key_queues;
mod loss;
mod object;
mod open_request;
mod options;
mod parking;
mod program;
mod record;
mod silent_servers;
mod sink;
mod sizes;
mod stats;
mod stream_ends;
mod sync;
mod waiting_records;
mod window;

pub use certificate_fault::CertificateFault;
pub use clock::{ServerClocks, clock_offset, micros_now};
pub use connect_failure::ConnectFailure;
pub use delivery::{Deliveries, DeliveryError, Disposition, Poison, Refusal};
pub use endpoints::Endpoints;
pub use event_id::id_text;
pub use event_origin::{ClusterNames, EventOrigin};
pub use event_position::{EventPosition, MAX_EPOCH, MAX_EVENT_LSN, PublishedLsn};
pub use held_record::HeldRecord;
pub use in_span::in_current_span;
pub use key_queues::{KeyQueues, QueuedRecord, queue_key};
pub use loss::{ACCEPT_LOSS, Loss, Losses};
pub use object::{AnySinkFactory, SinkError, any_factory};
pub use open_request::OpenRequest;
pub use options::SinkOptions;
pub use parking::Parking;
pub use program::{EndedProgram, OutputLimit, ProgramError, run_program};
pub use record::{Header, Record, RecordKind};
pub use silent_servers::ANSWER_LIMIT;
pub use sink::{
    BatchingMode, Obstacle, Retrying, SendError, Sink, SinkFactory, StreamStart, TransactionEnd,
};
pub use sizes::{EventSizes, NEAR_LIMIT_PERCENT, NearLimit, SIZE_BOUNDS};
pub use stats::{EndpointStats, MAX_TOPICS, OTHER_TOPICS, SinkStats, TopicStats};
pub use stream_ends::{SharedEnd, StreamEnd, StreamEnds};
pub use sync::lock;
pub use waiting_records::Waiting;
pub use window::Window;
