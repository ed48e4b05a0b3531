//! [`Danger`]: how near a slot is to the loss of WAL.

/// Bytes of a WAL segment, by default 16 MiB. The server removes whole segments, and
/// `safe_wal_size` counts whole ones.
const SEGMENT: u64 = 16 << 20;

/// The distance of a slot to the loss of WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Danger {
    /// None is near.
    None,
    /// More WAL than `max_wal_size` or than the configured threshold is kept.
    Much,
    /// More than half of `max_slot_wal_keep_size` is used up.
    Half,
    /// More than four fifths are used up, or the server may remove WAL at its next checkpoint.
    Imminent,
}

impl Danger {
    /// Judges the figures of `pg_replication_slots`. `left`: the bytes of `safe_wal_size` and of
    /// `max_slot_wal_keep_size`, if that is set. `warn_above`: bytes of retained WAL to warn about; 0
    /// disables that warning.
    pub fn judge(
        wal_status: Option<&str>,
        retained: u64,
        left: Option<(u64, u64)>,
        warn_above: u64,
    ) -> Self {
        let share = |percent: u64| {
            left.is_some_and(|(safe, limit)| safe < limit.max(SEGMENT) / 100 * percent)
        };
        match wal_status {
            Some("lost" | "unreserved") => Self::Imminent,
            _ if share(20) => Self::Imminent,
            _ if share(50) => Self::Half,
            Some("extended") => Self::Much,
            _ if warn_above > 0 && retained > warn_above => Self::Much,
            _ => Self::None,
        }
    }

    /// Returns the warning; `None` if there is no danger.
    pub fn message(self) -> Option<&'static str> {
        match self {
            Danger::None => None,
            Danger::Much => Some("the server keeps much WAL for the slot"),
            Danger::Half => {
                Some("more than half of the WAL that the server will keep for the slot is used up")
            }
            Danger::Imminent => Some(
                "the slot is about to lose WAL it needs: raise max_slot_wal_keep_size now, or see \
                 why nothing is confirmed",
            ),
        }
    }
}
