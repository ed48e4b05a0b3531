//! Mistakes that a pipeline around the core could make. Each can be planted in the model at the
//! place where the pipeline is correct, and the search must find it.

/// A planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Confirms the last commit that was received.
    ConfirmAtReceipt,
    /// Confirms the position of the last row that was acknowledged.
    ConfirmRow,
    /// Treats the report of a failed delivery as an acknowledgement.
    SkipNack,
    /// Offers the next record before the one that a full sink did not take.
    ReorderRetry,
    /// Confirms a keepalive's position inside a transaction.
    TrustKeepalive,
    /// Skips, with a new sink, the transactions that were enqueued in the dropped sink.
    SkipAfterLostSink,
    /// Passes over, with a new sink, the events before the last one in flight in the dropped sink.
    SkipEnqueued,
    /// Counts reports of the dropped sink for the new one, which uses the same sequence numbers.
    StaleReport,
    /// Starts the stream at the position received before, not at the slot's position.
    StartAhead,
    /// Forgets on a new connection which transactions were enqueued.
    ForgetEnqueued,
    /// Stops without a last status update.
    StopUnreported,
}
