//! What a relay around the core could get wrong. Each is planted in the harness, in the place where
//! the pipeline has it right, and the search must find it.

/// A planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Reports the last commit that was received.
    ConfirmAtReceipt,
    /// Reports the position of the last row that was acknowledged.
    ConfirmRow,
    /// Takes the report of a failed delivery for one of a delivery.
    SkipNack,
    /// Offers the following record before the one that a full sink refused.
    ReorderRetry,
    /// Reports a keepalive's position with a transaction open.
    TrustKeepalive,
    /// Passes over, with a new sink, what was enqueued to the one that was lost.
    PassOverLostSink,
    /// Lets reports of the sink that was lost count for the new one, whose numbers begin anew.
    StaleReport,
    /// Starts the stream where receiving stopped instead of where the slot stands.
    StartAhead,
    /// Forgets, on a new connection, what was enqueued.
    ForgetHandedOver,
    /// Ends without a last status.
    StopUnreported,
}
