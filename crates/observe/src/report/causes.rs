//! The causes of waiting and of failed attempts, and their remedies.

/// The cause of a start that waits for transactions of the server.
pub(crate) const OPEN_TRANSACTIONS: &str = "open-transactions";

/// The remedy while the server waits for standbys.
pub const STANDBY_REMEDY: &str = "start the standby, or remove its slot from \
                                         synchronized_standby_slots: walrelay check names it \
                                         (standby-slots)";

/// The remedies of failures that the relay retries, by
/// [`PipelineError::cause`](walrelay_relay::PipelineError::cause).
const REMEDIES: &[(&str, &str)] = &[
    (
        "connection",
        "see that Postgres runs and answers at source.url: walrelay check",
    ),
    (
        "silence",
        "see whether the network drops the connection to Postgres, or the server is stopped",
    ),
    ("sink", "see the reason: walrelay check"),
    ("delivery", "see the items of the sink in walrelay check"),
    (
        "displaced",
        "see that one relay reads the slot: walrelay slots list",
    ),
    (
        "promotion",
        "nothing: the slot is read again from the promoted server",
    ),
];

/// Returns the remedy of a failure that the relay retries, by its cause.
pub(crate) fn remedy_of_cause(cause: &str) -> Option<&'static str> {
    let found = REMEDIES.iter().find(|(known, _)| *known == cause);
    found.map(|(_, remedy)| *remedy)
}

/// Returns true if the sink ended the attempt that failed by this cause.
pub(crate) fn is_of_sink(cause: &str) -> bool {
    matches!(cause, "sink" | "delivery")
}
