//! `[retention]`: the rolling bookmark.

use std::time::Duration;
use walrelay_settings::{AlreadyReported, Reader, SECOND, Section, duration, section, size};

/// Bytes of WAL that the server keeps for a bookmark without the section, at most.
pub const MAX_WAL: u64 = 10_000_000_000;

/// `[retention]`: the rolling bookmark that the running relay keeps for replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How far back events can be replayed.
    pub keep: Duration,
    /// Bytes of WAL that the server keeps for the bookmark, at most.
    pub max_wal: u64,
}

section! {
/// The keys of [`Retention`].
#[derive(Debug)]
pub struct RetentionKeys at "retention" {
    /// How long back `walrelay replay --from rolling` reaches, at least 1s. Unset: nothing is kept.
    "keep" keep: Option<Duration> = duration(SECOND..).optional();
    /// How much WAL Postgres may keep for that, at least 16MiB; it wins over `keep`.
    "max_wal" max_wal: u64 = size((16 << 20)..=(1 << 60)).or("10GB");
}
}

/// Reads the section; `None` without `keep`.
pub fn retention(reader: &mut Reader<'_>) -> Result<Option<Retention>, AlreadyReported> {
    let keys = RetentionKeys::read(reader)?;
    let Some(keep) = keys.keep else {
        let path = "retention.max_wal";
        if reader.has(path) {
            return Err(reader.no_effect(path, "without `retention.keep`"));
        }
        return Ok(None);
    };
    Ok(Some(Retention {
        keep,
        max_wal: keys.max_wal,
    }))
}
