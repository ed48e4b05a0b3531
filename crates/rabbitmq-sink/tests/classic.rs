//! The sink keeps the promises of every sink with classic queues.

mod support;

use support::Server;
use walrelay_testkit::conformance;

conformance!(Server::start("classic"));
