/// Figures of a run. Each counts events of this process, repeats included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records the sink took.
    pub records: u64,
    /// Transactions whose commit was received, those without a record included.
    pub transactions: u64,
    /// Transactions passed over after a reconnect, as their first copy was enqueued already.
    pub repeats_avoided: u64,
    /// UPDATEs of an outbox table: not events, ignored.
    pub updates: u64,
    /// DELETEs of an outbox table: not events, ignored.
    pub deletes: u64,
    /// TRUNCATEs of an outbox table: not events, ignored.
    pub truncates: u64,
    /// Dead letters the sink took, those of parked keys aside.
    pub dead_letters: u64,
    /// Events that became dead letters because an earlier one of their key is one.
    pub parked: u64,
    /// Events passed over by the poison policy.
    pub skipped: u64,
    /// Logical messages that are no events: of other prefixes.
    pub logical_messages: u64,
}

impl Counts {
    /// The sums of two runs.
    #[must_use]
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            records: self.records + other.records,
            transactions: self.transactions + other.transactions,
            repeats_avoided: self.repeats_avoided + other.repeats_avoided,
            updates: self.updates + other.updates,
            deletes: self.deletes + other.deletes,
            truncates: self.truncates + other.truncates,
            dead_letters: self.dead_letters + other.dead_letters,
            parked: self.parked + other.parked,
            skipped: self.skipped + other.skipped,
            logical_messages: self.logical_messages + other.logical_messages,
        }
    }
}
