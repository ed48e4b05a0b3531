//! `walrelay init --consumer`: the SQL for the database of a consumer, and for the ids of services.
//!
//! It is printed only: the database of a consumer is in no configuration of the relay.

/// The table of processed events.
const PROCESSED_EVENTS: &str = include_str!("../../../shipped/0004_processed_events.sql");

/// The function of time-ordered ids.
pub(super) const UUIDV7: &str = include_str!("../../../shipped/0005_uuidv7.sql");

/// Returns the whole script; it can be run again.
pub(super) fn script() -> String {
    format!("{PROCESSED_EVENTS}\n{UUIDV7}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_migrations_are_printed() {
        let script = script();
        assert!(script.starts_with(PROCESSED_EVENTS) && script.ends_with(UUIDV7));
        assert!(script.contains("now() -\n-- interval '30 days'"));
    }
}
