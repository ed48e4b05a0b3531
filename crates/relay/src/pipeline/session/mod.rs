//! A sink with the core that reads its acknowledgements, from its creation to its end.

pub(super) mod poll_while;
pub(super) mod reports;
pub(super) mod sessions;
pub(super) mod sink_session;
