//! The sink keeps the promises of every sink with classic queues.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::support::{Server, options, section};
use walrelay_rabbitmq_sink::{ConstantAddress, RabbitmqKind};
use walrelay_sink_kind::SinkKind as _;
use walrelay_testkit::{conformance, silence_is_shown};

conformance!(Server::start("classic"));

#[test]
fn a_server_that_answers_nothing_is_shown() {
    let server = Server::start("classic");
    server.declare("silence", None);
    let section = section(server.rabbitmq.port());
    let kind = RabbitmqKind::new(&section, options(), ConstantAddress::default());
    silence_is_shown(&server, "silence", kind.unwrap().factory(None));
}
