//! The conformance suite, against a real server.

mod support;

use support::Server;
use walrelay_testkit::conformance;

conformance!(Server::start());
