//! The conformance suite, against a real server.

use crate::support::Server;
use walrelay_testkit::conformance;

conformance!(Server::start());
