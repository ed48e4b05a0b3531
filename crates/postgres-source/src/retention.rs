//! Warnings about the WAL that the server keeps for the slot.

use std::time::{Duration, Instant};

use tracing::{info, warn};
use walrelay_relay::Danger;

use super::catalog::RetainedWal;

/// Delay of the first reminder. Each further delay is twice as long, up to `LONGEST_REMINDER`.
const FIRST_REMINDER: Duration = Duration::from_secs(60);
const LONGEST_REMINDER: Duration = Duration::from_secs(3600);
/// The time for which the danger must be over before that is logged: on a busy server the figures oscillate
/// about a threshold.
const CALM: Duration = Duration::from_secs(60);
impl RetainedWal {
    /// Returns the text of the warning, if there is a danger. `warn_above`: bytes of retained WAL
    /// to warn about; 0 disables that warning.
    pub fn warning(&self, warn_above: u64) -> Option<&'static str> {
        self.danger(warn_above).message()
    }

    fn danger(&self, warn_above: u64) -> Danger {
        Danger::judge(
            self.wal_status.as_deref(),
            self.retained,
            self.safe.zip(self.limit),
            warn_above,
        )
    }
}

/// A log line that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    Warn(Danger),
    /// The danger is over.
    Over,
}

/// The warnings from a first one until the danger is over.
#[derive(Debug)]
struct Episode {
    /// The danger that was logged last.
    worst: Danger,
    remind_at: Instant,
    interval: Duration,
    calm_since: Option<Instant>,
}

/// Logs a warning when the danger grows, reminders at growing intervals, and the end of the danger.
#[derive(Debug)]
pub(super) struct RetentionWatch {
    slot: String,
    warn_above: u64,
    episode: Option<Episode>,
}

impl RetentionWatch {
    pub(super) fn new(slot: String, warn_above: u64) -> Self {
        Self {
            slot,
            warn_above,
            episode: None,
        }
    }

    /// Logs a warning, a reminder or the end, if one is due.
    pub(super) fn log(&mut self, retention: &RetainedWal) {
        let Some(notice) = self.notice(retention, Instant::now()) else {
            return;
        };
        let RetainedWal {
            retained,
            unconfirmed,
            ..
        } = retention;
        let wal_status = retention.wal_status.as_deref().unwrap_or("unknown");
        let slot = &self.slot;
        // One field for each figure, so that log collectors can alert on it.
        match notice {
            Notice::Warn(danger) => warn!(
                slot,
                wal_status,
                retained,
                unconfirmed,
                safe_wal_size = retention.safe,
                max_slot_wal_keep_size = retention.limit,
                oldest_transaction = retention.oldest_transaction.as_deref(),
                "{}",
                danger.message().unwrap_or_default()
            ),
            Notice::Over => info!(
                slot,
                wal_status, retained, unconfirmed, "the server keeps little WAL for the slot again"
            ),
        }
    }

    fn notice(&mut self, retention: &RetainedWal, now: Instant) -> Option<Notice> {
        let danger = retention.danger(self.warn_above);
        let Some(episode) = &mut self.episode else {
            if danger == Danger::None {
                return None;
            }
            self.episode = Some(Episode {
                worst: danger,
                remind_at: now + FIRST_REMINDER,
                interval: FIRST_REMINDER,
                calm_since: None,
            });
            return Some(Notice::Warn(danger));
        };
        if danger == Danger::None {
            let since = *episode.calm_since.get_or_insert(now);
            if now.duration_since(since) < CALM {
                return None;
            }
            self.episode = None;
            return Some(Notice::Over);
        }
        episode.calm_since = None;
        if danger > episode.worst {
            episode.worst = danger;
            episode.interval = FIRST_REMINDER;
            episode.remind_at = now + FIRST_REMINDER;
            return Some(Notice::Warn(danger));
        }
        if now < episode.remind_at {
            return None;
        }
        episode.interval = (episode.interval * 2).min(LONGEST_REMINDER);
        episode.remind_at = now + episode.interval;
        // If the danger has shrunk and grows again, the next warning is logged at once.
        episode.worst = danger;
        Some(Notice::Warn(danger))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn kept(retained: u64, wal_status: &str, safe: Option<u64>) -> RetainedWal {
        RetainedWal {
            retained,
            unconfirmed: retained,
            wal_status: Some(wal_status.to_owned()),
            safe,
            limit: safe.map(|_| 10 * GIB),
            oldest_transaction: None,
        }
    }

    #[test]
    fn dangers() {
        for (retention, danger) in [
            (kept(0, "reserved", None), Danger::None),
            (kept(GIB, "reserved", None), Danger::None),
            (kept(GIB + 1, "reserved", None), Danger::Much),
            (kept(0, "extended", None), Danger::Much),
            (kept(0, "reserved", Some(10 * GIB)), Danger::None),
            (kept(0, "reserved", Some(5 * GIB)), Danger::None),
            (kept(0, "extended", Some(5 * GIB - 100)), Danger::Half),
            (kept(0, "reserved", Some(2 * GIB)), Danger::Half),
            (kept(0, "reserved", Some(2 * GIB - 100)), Danger::Imminent),
            (kept(0, "extended", Some(0)), Danger::Imminent),
            (kept(0, "unreserved", Some(0)), Danger::Imminent),
            (kept(0, "unreserved", None), Danger::Imminent),
            (kept(0, "lost", None), Danger::Imminent),
            (RetainedWal::default(), Danger::None),
        ] {
            assert_eq!(retention.danger(GIB), danger, "{retention:?}");
        }
        assert_eq!(kept(u64::MAX, "reserved", None).danger(0), Danger::None);
        // With a limit below a segment, the server still keeps the current segment.
        let small = RetainedWal {
            limit: Some(1 << 20),
            ..kept(0, "reserved", Some(15 << 20))
        };
        assert_eq!(small.danger(GIB), Danger::None);
    }

    /// Returns the notices of looks ten seconds apart, each with its second.
    fn notices(looks: impl IntoIterator<Item = (u32, RetainedWal)>) -> Vec<(u64, Notice)> {
        let mut watch = RetentionWatch::new("s".into(), GIB);
        let begin = Instant::now();
        let mut notices = Vec::new();
        let mut seconds = 0;
        for (times, retention) in looks {
            for _ in 0..times {
                let now = begin + Duration::from_secs(seconds);
                let notice = watch.notice(&retention, now);
                notices.extend(notice.map(|notice| (seconds, notice)));
                seconds += 10;
            }
        }
        notices
    }

    #[test]
    fn each_step_for_the_worse_is_said_once() {
        let fine = kept(0, "reserved", Some(10 * GIB));
        let half = kept(0, "extended", Some(4 * GIB));
        let nearly = kept(0, "extended", Some(GIB));
        let looks = [(3, fine), (3, half.clone()), (2, nearly), (2, half)];
        assert_eq!(
            notices(looks),
            [
                (30, Notice::Warn(Danger::Half)),
                (60, Notice::Warn(Danger::Imminent)),
            ]
        );
    }

    #[test]
    fn reminders_come_at_growing_intervals() {
        let much = kept(2 * GIB, "reserved", None);
        let at: Vec<u64> = notices([(1_500, much)]).iter().map(|(at, _)| *at).collect();
        assert_eq!(
            at,
            [0, 60, 180, 420, 900, 1_860, 3_780, 7_380, 10_980, 14_580]
        );
    }

    #[test]
    fn the_end_is_logged_after_a_calm_period() {
        let much = kept(2 * GIB, "reserved", None);
        let fine = kept(0, "reserved", None);
        let looks = [
            (1, much.clone()),
            (3, fine.clone()),
            (1, much.clone()),
            (8, fine),
            (1, much),
        ];
        assert_eq!(
            notices(looks),
            [
                (0, Notice::Warn(Danger::Much)),
                (110, Notice::Over),
                (130, Notice::Warn(Danger::Much)),
            ]
        );
    }
}
