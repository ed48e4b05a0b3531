//! Sink sessions: a sink with the core that reads its acknowledgements, created and dropped
//! together.

pub(super) mod poll_while;
mod refusals;
pub(super) mod reports;
pub(super) mod sessions;
pub(super) mod sink_session;
