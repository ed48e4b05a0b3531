//! `[audit]`: the slow look for rows that the stream never carried.

use std::time::Duration;
use walrelay_settings::{AlreadyReported, Reader, SECOND, Section, duration, section, size};

/// `[audit]`: how often and how much of the outbox tables is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditSettings {
    /// The interval of the rounds.
    pub every: Duration,
    /// Bytes of each table that one round reads, at most.
    pub bytes: u64,
    /// Only older rows are looked at.
    pub older_than: Duration,
}

section! {
/// The keys of [`AuditSettings`].
#[derive(Debug)]
pub struct AuditKeys at "audit" {
    /// The interval at which the running relay looks for [rows that it never saw](../how-to/where.md#an-audit-in-the-background), such as `1h`. Unset: never. Needs `source.mark_sent`.
    "every" every: Option<Duration> = duration(SECOND..).optional();
    /// How much of each table one round reads, at least 1MiB. The next round goes on from there.
    "bytes" bytes: u64 = size((1 << 20)..=(1 << 60)).or("256MiB");
    /// Only rows that are older are looked at, at least 1s.
    "older_than" older_than: Duration = duration(SECOND..).or("5m");
}
}

/// Reads the section; `None` without `every`. `marks`: rows are marked as sent.
pub fn audit(
    reader: &mut Reader<'_>,
    marks: bool,
) -> Result<Option<AuditSettings>, AlreadyReported> {
    let keys = AuditKeys::read(reader)?;
    let Some(every) = keys.every else {
        for path in ["audit.bytes", "audit.older_than"] {
            if reader.has(path) {
                return Err(reader.no_effect(path, "without `audit.every`"));
            }
        }
        return Ok(None);
    };
    if !marks {
        let what = "`audit.every` needs `source.mark_sent`: without marks, no row tells whether it was sent. The account of \
                    `[prune]` has sums of ten minutes of rows, which no short statement can compare: run \
                    `walrelay stuck --since 24h` as a cron job";
        return Err(reader.conflict("audit.every", what.to_owned()));
    }
    Ok(Some(AuditSettings {
        every,
        bytes: keys.bytes,
        older_than: keys.older_than,
    }))
}
