//! Checks whether a new stream continues the WAL that was read before, and finds the missing range.

use walrelay_lsn::{CommitEnd, Lsn};

use crate::interface::source::{Ancestor, Opened, Predecessor, Resume};

/// The relation of a stream to the WAL that was read before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Continuity {
    /// The stream continues the same WAL.
    Same,
    /// Another relay relayed and confirmed the events from `from` to `to`. They must not be relayed
    /// again; everything after them must be read again from the slot.
    HandedOver {
        /// The last position that this relay was to confirm.
        from: CommitEnd,
        /// The slot's position now.
        to: CommitEnd,
        /// The other relay.
        by: Predecessor,
    },
    /// The outbox was moved to another server, and every event of the former one was delivered before this slot
    /// was created. Positions of the two servers cannot be compared, so everything must be read again from the slot.
    Moved,
    /// The server was promoted, and the slot is not beyond what was relayed of the WAL that both
    /// timelines have in common: nothing is missing. Positions beyond the common part belong to
    /// other transactions now, so everything must be read again from the slot.
    Promoted {
        /// The position where the new timeline left the old one. Events that were relayed from the
        /// old timeline beyond it belong to transactions that the promoted server does not have.
        parted: Lsn,
    },
}

/// The stream does not continue the WAL that was read: events are missing, or were undone. Each
/// variant names the missing range of positions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The slot is beyond the last position that was to be confirmed: another reader confirmed a
    /// later position, or the slot was dropped and created again.
    #[error(
        "the slot was moved by another client, or dropped and recreated: changes committed from \
         {from} to {to} were not relayed"
    )]
    SlotMoved {
        /// The last position that was to be confirmed.
        from: CommitEnd,
        /// The slot's position now.
        to: CommitEnd,
    },
    /// The server's WAL ends before a position that the server had sent: the server was restored
    /// from an older state (a snapshot of a disk or a machine, a write that was acknowledged and
    /// lost). Other transactions get these positions now, so what is known of the positions is
    /// wrong.
    #[error(
        "the server's log went back: it ends at {from}, and the relay had received it up to {to}; \
         changes committed from {from} to {to} are gone from the server"
    )]
    LogWentBack {
        /// The end of the server's WAL now.
        from: Lsn,
        /// The highest commit received or confirmed.
        to: CommitEnd,
    },
    /// The server belongs to another cluster than before.
    #[error(
        "the server's system identifier changed from {before} to {now}: changes committed from \
         {from} on to the end of the old log, and from the start of the new one to {to}, were not \
         relayed"
    )]
    OtherServer {
        /// The old system identifier.
        before: String,
        /// The new system identifier.
        now: String,
        /// The last position of the old cluster that was to be confirmed.
        from: CommitEnd,
        /// The position of the new cluster's slot.
        to: CommitEnd,
    },
    /// The timeline changed, and the slot is beyond what was relayed of the WAL that the two
    /// timelines have in common, or the new timeline does not continue the old one.
    #[error(
        "the server's timeline changed from {before} to {now}, and the slot does not continue what \
         was relayed{}: changes committed from {from} to {to} were not relayed",
        with_parted(*parted)
    )]
    OtherTimeline {
        /// The old timeline.
        before: u32,
        /// The new timeline.
        now: u32,
        /// The position where the new timeline left the old one; `None` if it does not continue it.
        parted: Option<Lsn>,
        /// The last position in common that was to be confirmed.
        from: CommitEnd,
        /// The slot's position now.
        to: CommitEnd,
    },
}

fn with_parted(parted: Option<Lsn>) -> String {
    match parted {
        Some(lsn) => format!(" (the timelines part at {lsn})"),
        None => " (the new timeline does not continue the old one)".to_owned(),
    }
}

impl Resume {
    /// Returns the part of the confirmed position that a server with these ancestors has in its
    /// WAL, too: at most the position where its timeline left ours. Positions beyond that one
    /// belong to other transactions on the new timeline.
    pub fn in_common(&self, ancestors: &[Ancestor]) -> CommitEnd {
        self.parted(ancestors).map_or(self.confirmed, |lsn| {
            self.confirmed.min(CommitEnd::from_slot(lsn))
        })
    }

    /// Returns the position at which the server left our timeline, if the timeline is one of its
    /// ancestors.
    fn parted(&self, ancestors: &[Ancestor]) -> Option<Lsn> {
        let ancestor = ancestors.iter().find(|a| a.timeline == self.timeline);
        ancestor.map(|ancestor| ancestor.ended)
    }

    /// Checks whether the stream `opened` continues the WAL that was read before.
    ///
    /// # Errors
    /// If the stream does not continue it, so that events may be missing.
    pub fn continued_by<S>(&self, opened: &Opened<S>) -> Result<Continuity, LogError> {
        let to = opened.confirmed;
        let handed_over = || {
            let by = opened.predecessor.clone()?;
            let from = self.in_common(&opened.ancestors);
            Some(Continuity::HandedOver { from, to, by })
        };
        if opened.system_id != self.system_id {
            if opened.former.as_ref() == Some(&self.system_id) {
                return Ok(Continuity::Moved);
            }
            return Err(LogError::OtherServer {
                before: self.system_id.clone(),
                now: opened.system_id.clone(),
                from: self.confirmed,
                to,
            });
        }
        // A standby that was promoted under our stream sent its own WAL throughout, so known
        // positions are valid on both timelines.
        let same_server = self.server_start.as_ref() == Some(&opened.server_start);
        if opened.timeline != self.timeline && !same_server {
            let parted = self.parted(&opened.ancestors);
            // A standby that was promoted after the drain, and switched to.
            if parted.is_some() && opened.former.as_ref() == Some(&self.system_id) {
                return Ok(Continuity::Moved);
            }
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
        // The server cannot know more than `self.confirmed`, which was acknowledged at the end of
        // the last connection. So a slot beyond it was moved by another reader, or created again.
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

    /// Creates what is known after reading on timeline 2: confirmed up to 100, received up to 120.
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
            slot: None,
            server_start: "1.5".into(),
            ancestors: Vec::new(),
            flushed: Lsn::new(500),
            confirmed: at(confirmed),
            server_timeout: None,
            tables: Vec::new(),
            predecessor: None,
            epoch: 0,
            former: None,
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

    fn other_timeline(parted: Option<u64>, from: u64, to: u64) -> LogError {
        LogError::OtherTimeline {
            before: 2,
            now: 3,
            parted: parted.map(Lsn::new),
            from: at(from),
            to: at(to),
        }
    }

    #[test]
    fn a_stream_continues_the_log_or_names_the_range_that_is_missing() {
        let (from, to) = (at(100), at(101));
        let same = || Ok(Continuity::Same);
        let moved = LogError::SlotMoved { from, to };
        assert!(moved.to_string().contains("from 0/64 to 0/65"), "{moved}");
        let (ends, to) = (Lsn::new(119), at(120));
        let went_back = || Err(LogError::LogWentBack { from: ends, to });
        let by = || Predecessor::StateFile;
        let after_takeover = |opened| Opened {
            predecessor: Some(by()),
            ..opened
        };
        let over = |from, to| {
            let (from, to) = (at(from), at(to));
            Ok(Continuity::HandedOver { from, to, by: by() })
        };
        let shorter = |flushed| Opened {
            flushed: Lsn::new(flushed),
            ..opened(90)
        };
        let other = |confirmed| Opened {
            system_id: "8".into(),
            ..opened(confirmed)
        };
        let other_server = |to| {
            Err(LogError::OtherServer {
                before: "7".into(),
                now: "8".into(),
                from,
                to: at(to),
            })
        };
        // A standby that is promoted under the stream. The slot is beyond the position where the
        // timelines part, because we confirmed that position.
        let under_stream = |confirmed| Opened {
            server_start: "1.5".into(),
            ..promoted(confirmed, 80)
        };
        // The record of a switch names the former server, which a promoted one shares its identifier with.
        let switched = |opened, former: &str| Opened {
            former: Some(former.into()),
            ..opened
        };
        let went_on = || Ok(Continuity::Moved);
        for (case, opened, expected) in [
            ("switched to", switched(other(5), "7"), went_on()),
            (
                "switched from a third",
                switched(other(5), "9"),
                other_server(5),
            ),
            (
                "promoted and switched to",
                switched(promoted(300, 80), "7"),
                went_on(),
            ),
            (
                "beyond a switch",
                switched(opened(101), "7"),
                Err(moved.clone()),
            ),
            ("far before", opened(1), same()),
            ("just before", opened(99), same()),
            ("where it was left", opened(100), same()),
            ("beyond", opened(101), Err(moved.clone())),
            ("handed over", after_takeover(opened(101)), over(100, 101)),
            (
                "a promotion",
                after_takeover(promoted(90, 80)),
                over(80, 90),
            ),
            ("not moved", after_takeover(opened(100)), same()),
            // Another relay does not explain a WAL that went back, nor another cluster.
            ("a shorter log", after_takeover(shorter(119)), went_back()),
            (
                "another cluster",
                after_takeover(other(101)),
                other_server(101),
            ),
            ("under the stream", under_stream(100), same()),
            ("the same, beyond", under_stream(101), Err(moved)),
            ("ends at the last commit", shorter(120), same()),
            ("ends before it", shorter(119), went_back()),
            ("another one, before", other(1), other_server(1)),
            ("another one", other(100), other_server(100)),
            ("another one, beyond", other(101), other_server(101)),
        ] {
            assert_eq!(resume().continued_by(&opened), expected, "{case}");
        }
        // A position from a state file does not name the server that it was read from.
        let noted = Resume {
            server_start: None,
            ..resume()
        };
        let expected = Err(other_timeline(Some(80), 80, 100));
        assert_eq!(noted.continued_by(&under_stream(100)), expected);
    }

    #[test]
    fn a_promotion_continues_up_to_where_the_timelines_part() {
        // The slot may be up to the lesser of the confirmed position and the one where the
        // timelines part.
        for (confirmed, ended) in [(100, 150), (99, 150), (80, 80)] {
            let parted = Lsn::new(ended);
            let result = resume().continued_by(&promoted(confirmed, ended));
            assert_eq!(result, Ok(Continuity::Promoted { parted }));
        }
        for (confirmed, ended, from) in [(101, 150, 100), (81, 80, 80), (100, 80, 80)] {
            let result = resume().continued_by(&promoted(confirmed, ended));
            assert_eq!(result, Err(other_timeline(Some(ended), from, confirmed)));
        }
    }

    #[test]
    fn a_timeline_that_does_not_continue_the_old_one_is_another_log() {
        let mut unrelated = promoted(1, 80);
        unrelated.ancestors.truncate(1);
        let error = resume().continued_by(&unrelated).unwrap_err();
        assert_eq!(error, other_timeline(None, 100, 1));
        assert!(error.to_string().contains("from 0/64 to 0/1"), "{error}");
    }
}
