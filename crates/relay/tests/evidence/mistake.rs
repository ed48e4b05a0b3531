//! Mistakes that the code around the account and the marks could make. Each can be planted in the
//! model, and the search must find it.

/// A planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Confirms a position before the rows before it are marked.
    MarkAfterConfirm,
    /// Confirms a position before the sums up to there are written.
    ConfirmBeforeAccount,
    /// Adds sums whatever the account has counted.
    CountTwice,
    /// Leaves out the second bucket of a batch that has two.
    ForgetBucket,
    /// Repeats a note with the newest position, and with the sums of the first attempt.
    NoteBeyondSums,
    /// Begins a stream without another token of the account, so that a statement of a killed process may change
    /// the account later.
    LateStatement,
    /// Compares the account of one snapshot with the rows of another.
    TwoSnapshots,
    /// Marks a row by its key, whatever its other values.
    MarkByKey,
    /// Marks the row of a dead letter by its key, whatever its other values.
    MarkDeadByKey,
    /// Deletes the key of a dead letter once its row is marked as such.
    ForgetDead,
    /// Deletes the rows of the compared keys, whatever their places.
    DeleteByKey,
    /// Counts all rows of dead letters as sent once those that the snapshot sees are resolved.
    SettleAll,
    /// Counts the rows of all relays' dead letters as sent once the own ones are resolved.
    MergeUnsettled,
    /// Keeps a bucket settled when one more of its rows becomes a dead letter.
    StaySettled,
    /// Starts on a slot that is beyond the note.
    IgnoreNote,
    /// Asks only the account of the relay that prunes.
    AskOneAccount,
}
