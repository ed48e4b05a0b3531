//! The sink keeps the promises that the kind of a queue decides with streams, which are published to
//! as queues are.

mod support;

use support::Server;
use walrelay_testkit::conformance;

conformance!(Server::start("stream") =>
    acknowledged_means_durable
    order_per_key
);
