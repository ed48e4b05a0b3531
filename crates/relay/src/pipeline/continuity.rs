//! Whether a new stream continues the log that was read before, or what is missing.

use std::fmt;

use walrelay_lsn::{CommitEnd, Lsn};

use crate::interface::source::{Ancestor, Opened, Predecessor, Resume};

/// How a stream continues the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Continuity {
    /// It is the same log.
    Same,
    /// Another relay confirmed what lies between: what it relayed is not to be relayed again, and
    /// everything after it must be taken anew from the slot on.
    HandedOver {
        /// The last position that was to be confirmed here.
        from: CommitEnd,
        /// The slot's position now.
        to: CommitEnd,
        /// Who relayed it.
        by: Predecessor,
    },
    /// The server was promoted, and the slot is before the position where the two logs part:
    /// nothing is missing. Positions beyond that place mean something else now, so everything
    /// must be taken anew from the slot on.
    Promoted {
        /// Where the old timeline was left. What was relayed of it beyond is of transactions that
        /// the promoted server does not have.
        parted: Lsn,
    },
}

/// The stream does not continue the log that was read: events are missing, or were undone. Each
/// names what is gone as a range of positions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The slot is not where it was left: somebody else confirmed a later position, or dropped the
    /// slot and made it anew.
    #[error(
        "the slot was moved by somebody else, or dropped and made anew: what was committed from \
         {from} to {to} was not relayed"
    )]
    SlotMoved {
        /// The last position that was to be confirmed.
        from: CommitEnd,
        /// The slot's position now.
        to: CommitEnd,
    },
    /// The server's log ends before what it had sent: it was restored from an older state (a
    /// snapshot of a disk or a machine, a write that was acknowledged and lost). Positions are used
    /// again for other transactions, so nothing known of them holds.
    #[error(
        "the server's log went back: it ends at {from}, and what was received reached {to}; \
         what was committed from {from} to {to} is gone from the server"
    )]
    LogWentBack {
        /// Where the log ends now.
        from: Lsn,
        /// The highest commit received or confirmed.
        to: CommitEnd,
    },
    /// The server is another one than before.
    #[error(
        "the server's system identifier changed from {before} to {now}: what was committed from \
         {from} on to the end of the old log, and from the beginning of the new one to {to}, was \
         not relayed"
    )]
    OtherServer {
        /// As it was.
        before: String,
        /// As it is now.
        now: String,
        /// The last position of the old cluster that was to be confirmed.
        from: CommitEnd,
        /// The position of the new one's slot.
        to: CommitEnd,
    },
    /// The server was promoted, and its slot is beyond what was relayed of the log that the two
    /// timelines have in common.
    #[error(
        "the server's timeline changed from {before} to {now}, and the slot does not continue what \
         was relayed{}: what was committed from {from} to {to} was not relayed",
        Parted(*parted)
    )]
    OtherTimeline {
        /// As it was.
        before: u32,
        /// As it is now.
        now: u32,
        /// Where the old timeline was left; `None` if the new one does not continue it.
        parted: Option<Lsn>,
        /// The last position in common that was to be confirmed.
        from: CommitEnd,
        /// The slot's position now.
        to: CommitEnd,
    },
}

struct Parted(Option<Lsn>);

impl fmt::Display for Parted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(lsn) => write!(f, " (the timelines part at {lsn})"),
            None => f.write_str(" (the new timeline does not continue the old one)"),
        }
    }
}

impl Resume {
    /// Up to where what was relayed belongs to the log of a server with these ancestors too: what was
    /// relayed of an old timeline beyond the place where the new one parts from it says nothing of
    /// the new one.
    pub fn in_common(&self, ancestors: &[Ancestor]) -> CommitEnd {
        self.parted(ancestors).map_or(self.confirmed, |lsn| {
            self.confirmed.min(CommitEnd::from_slot(lsn))
        })
    }

    /// Where this timeline was left, if it is one of these.
    fn parted(&self, ancestors: &[Ancestor]) -> Option<Lsn> {
        let ancestor = ancestors.iter().find(|a| a.timeline == self.timeline);
        ancestor.map(|ancestor| ancestor.ended)
    }

    /// Whether `opened` continues what is known.
    ///
    /// # Errors
    /// If it does not, and events may be missing for it.
    pub fn continued_by<S>(&self, opened: &Opened<S>) -> Result<Continuity, LogError> {
        let to = opened.confirmed;
        let handed_over = || {
            let by = opened.predecessor.clone()?;
            let from = self.in_common(&opened.ancestors);
            Some(Continuity::HandedOver { from, to, by })
        };
        if opened.system_id != self.system_id {
            return Err(LogError::OtherServer {
                before: self.system_id.clone(),
                now: opened.system_id.clone(),
                from: self.confirmed,
                to,
            });
        }
        // A standby that was promoted under our stream sent its own log throughout, so positions of both
        // timelines are known.
        let same_server = self.server_start.as_ref() == Some(&opened.server_start);
        if opened.timeline != self.timeline && !same_server {
            let parted = self.parted(&opened.ancestors);
            let from = self.in_common(&opened.ancestors);
            return match parted {
                Some(parted) if to <= from => Ok(Continuity::Promoted { parted }),
                _ => handed_over().ok_or(LogError::OtherTimeline {
                    before: self.timeline,
                    now: opened.timeline,
                    parted,
                    from,
                    to,
                }),
            };
        }
        // Records in flight may have been acknowledged since the connection was lost; the server
        // can only have heard of what was confirmed while it lasted.
        let moved = to > self.confirmed;
        if moved && opened.predecessor.is_none() {
            return Err(LogError::SlotMoved {
                from: self.confirmed,
                to,
            });
        }
        if opened.flushed < self.seen.lsn() {
            return Err(LogError::LogWentBack {
                from: opened.flushed,
                to: self.seen,
            });
        }
        Ok(handed_over().filter(|_| moved).unwrap_or(Continuity::Same))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lsn: u64) -> CommitEnd {
        CommitEnd::from_slot(Lsn::new(lsn))
    }

    /// Confirmed up to 100, received up to 120, on timeline 2.
    fn resume() -> Resume {
        Resume {
            system_id: "7".into(),
            timeline: 2,
            server_start: Some("1.5".into()),
            confirmed: at(100),
            seen: at(120),
        }
    }

    fn opened(confirmed: u64) -> Opened<()> {
        Opened {
            stream: (),
            system_id: "7".into(),
            timeline: 2,
            server_start: "1.5".into(),
            ancestors: Vec::new(),
            flushed: Lsn::new(500),
            confirmed: at(confirmed),
            server_timeout: None,
            tables: Vec::new(),
            predecessor: None,
        }
    }

    fn promoted(confirmed: u64, ended: u64) -> Opened<()> {
        let ancestors = [(1, 10), (2, ended)];
        Opened {
            timeline: 3,
            server_start: "2.5".into(),
            ancestors: ancestors
                .map(|(timeline, ended)| Ancestor {
                    timeline,
                    ended: Lsn::new(ended),
                })
                .to_vec(),
            ..opened(confirmed)
        }
    }

    #[test]
    fn a_slot_where_it_was_left_or_before_continues() {
        for confirmed in [1, 99, 100] {
            let result = resume().continued_by(&opened(confirmed));
            assert_eq!(result, Ok(Continuity::Same));
        }
    }

    #[test]
    fn a_slot_beyond_was_moved_and_the_range_is_named() {
        let error = resume().continued_by(&opened(101)).unwrap_err();
        assert_eq!(
            error,
            LogError::SlotMoved {
                from: at(100),
                to: at(101)
            }
        );
        assert!(error.to_string().contains("from 0/64 to 0/65"), "{error}");
    }

    #[test]
    fn what_another_relay_confirmed_is_handed_over() {
        let by = Predecessor::StateFile;
        let taken = |opened| Opened {
            predecessor: Some(by.clone()),
            ..opened
        };
        let over = |from, to| Continuity::HandedOver {
            from: at(from),
            to: at(to),
            by: by.clone(),
        };
        let moved = resume().continued_by(&taken(opened(101)));
        assert_eq!(moved, Ok(over(100, 101)));
        // Also over a promotion that it lived through.
        let moved = resume().continued_by(&taken(promoted(90, 80)));
        assert_eq!(moved, Ok(over(80, 90)));
        let same = resume().continued_by(&taken(opened(100)));
        assert_eq!(same, Ok(Continuity::Same));
        // A relay vouches for positions of one log only.
        let shorter = taken(Opened {
            flushed: Lsn::new(119),
            ..opened(90)
        });
        assert!(resume().continued_by(&shorter).is_err());
        let other = taken(Opened {
            system_id: "8".into(),
            ..opened(101)
        });
        assert!(resume().continued_by(&other).is_err());
    }

    /// Its slot is beyond the position where the timelines part, because we confirmed that position.
    #[test]
    fn a_standby_that_is_promoted_under_the_stream_continues_its_own_log() {
        let same = Opened {
            server_start: "1.5".into(),
            ..promoted(100, 80)
        };
        assert_eq!(resume().continued_by(&same), Ok(Continuity::Same));
        let moved = Opened {
            server_start: "1.5".into(),
            ..promoted(101, 80)
        };
        let error = resume().continued_by(&moved).unwrap_err();
        assert!(matches!(error, LogError::SlotMoved { .. }), "{error}");
        // From a state file it is not known which server that was.
        let noted = Resume {
            server_start: None,
            ..resume()
        };
        let error = noted.continued_by(&same).unwrap_err();
        assert!(matches!(error, LogError::OtherTimeline { .. }), "{error}");
    }

    #[test]
    fn a_log_that_ends_before_what_was_received_went_back() {
        let shorter = |flushed| Opened {
            flushed: Lsn::new(flushed),
            ..opened(90)
        };
        assert_eq!(resume().continued_by(&shorter(120)), Ok(Continuity::Same));
        assert_eq!(
            resume().continued_by(&shorter(119)),
            Err(LogError::LogWentBack {
                from: Lsn::new(119),
                to: at(120)
            })
        );
    }

    #[test]
    fn another_cluster_is_told_by_its_identifier_wherever_its_slot_stands() {
        for confirmed in [1, 100, 101] {
            let other = Opened {
                system_id: "8".into(),
                ..opened(confirmed)
            };
            let error = resume().continued_by(&other).unwrap_err();
            assert!(matches!(error, LogError::OtherServer { .. }), "{error}");
        }
    }

    #[test]
    fn a_promotion_continues_up_to_where_the_timelines_part() {
        // The slot may stand up to the lesser of what was relayed and where the log parts.
        for (confirmed, ended) in [(100, 150), (99, 150), (80, 80)] {
            assert_eq!(
                resume().continued_by(&promoted(confirmed, ended)),
                Ok(Continuity::Promoted {
                    parted: Lsn::new(ended)
                })
            );
        }
        for (confirmed, ended, from) in [(101, 150, 100), (81, 80, 80), (100, 80, 80)] {
            assert_eq!(
                resume().continued_by(&promoted(confirmed, ended)),
                Err(LogError::OtherTimeline {
                    before: 2,
                    now: 3,
                    parted: Some(Lsn::new(ended)),
                    from: at(from),
                    to: at(confirmed),
                })
            );
        }
    }

    #[test]
    fn a_timeline_that_does_not_continue_the_old_one_is_another_log() {
        let mut stranger = promoted(1, 80);
        stranger.ancestors.truncate(1);
        let error = resume().continued_by(&stranger).unwrap_err();
        assert!(
            matches!(error, LogError::OtherTimeline { parted: None, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("from 0/64 to 0/1"), "{error}");
    }
}
