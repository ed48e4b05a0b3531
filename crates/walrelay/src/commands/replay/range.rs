//! What is replayed: the slot that reaches the beginning, and the bounds.

use std::fmt;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;

use super::note::{Note, unusable};
use super::sink;
use crate::cli::{Exit, Failure, ReplayArgs, ReplayFrom, ReplayTo};
use crate::commands::bookmark::unknown;
use crate::commands::server::{Server, failure};
use crate::postgres::{Bookmark, SlotRow, bookmarks_among, slots};

/// A slot that a replay can be made from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    slot: String,
    /// The bookmark; `None` for the relay's own slot.
    bookmark: Option<String>,
    position: Lsn,
    /// It was at this position at that time: what is committed later is behind it (Postgres 17 and newer).
    since: Option<PgTimestamp>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bookmark {
            Some(name) => write!(f, "bookmark {name}"),
            None => write!(f, "slot {}", self.slot),
        }
    }
}

/// The replay that is asked for.
pub(super) async fn chosen(args: &ReplayArgs, server: &Server) -> Result<Note, Failure> {
    let Some(from) = &args.from else {
        return Err(Failure::new(
            "replay-range",
            Exit::Usage,
            "--from is missing",
        ));
    };
    let sink = sink(args, &server.config)?;
    let mut session = server.connect().await?;
    let rows = slots(&mut session).await.map_err(failure)?;
    session.close().await;
    let system = server.system().await?;
    let candidates = candidates(server.slot(), rows);
    let (candidate, after) = match from {
        ReplayFrom::Bookmark(name) => (named(&candidates, server.slot(), name)?, None),
        ReplayFrom::Lsn(lsn) => (reaching(&candidates, *lsn, system.flushed)?, None),
        ReplayFrom::Time(time) => {
            let (candidate, time) = committed(&candidates, *time, server, system.flushed).await?;
            (candidate, Some(time))
        }
    };
    let start = match from {
        ReplayFrom::Lsn(lsn) => *lsn,
        _ => candidate.position,
    };
    let (end, before) = match args.to {
        None => (system.flushed, None),
        Some(ReplayTo::Lsn(lsn)) => (lsn, None),
        Some(ReplayTo::Time(time)) => (system.flushed, Some(timestamp(time)?)),
    };
    if end > system.flushed {
        return Err(range(format!(
            "the log ends at {}, before {end}",
            system.flushed
        )));
    }
    if end < start
        || before
            .zip(after)
            .is_some_and(|(before, after)| before <= after)
    {
        return Err(range("the end is before the beginning".to_owned()));
    }
    Ok(Note {
        id: format!("{:08x}", fastrand::u32(..)),
        relay_slot: server.slot().to_owned(),
        slot: candidate.slot.clone(),
        system_id: system.system_id,
        from: from.to_string(),
        start: start.to_string(),
        end: end.to_string(),
        after: after.map(PgTimestamp::get),
        before: before.map(PgTimestamp::get),
        sink,
        topic_prefix: args.topic_prefix.clone(),
        to_topic: args.to_topic.clone(),
        selection: args.selection.clone(),
        rate: args.rate,
        acknowledged: None,
    })
}

/// Whether the rest of a replay can still be read.
pub(super) async fn still_there(note: &Note, server: &Server) -> Result<(), Failure> {
    if server.system().await?.system_id != note.system_id {
        let what = format!("replay {} was one of another server", note.id);
        return Err(Failure::new("replay-resume", Exit::Config, what)
            .remedy("name the configuration of that server with --config"));
    }
    let mut session = server.connect().await?;
    let rows = slots(&mut session).await.map_err(failure)?;
    session.close().await;
    let from = note.acknowledged.as_ref().unwrap_or(&note.start);
    let wanted = from.parse().map_err(|_| unusable(&note.id))?;
    let all = candidates(server.slot(), rows);
    let kept = all.iter().find(|candidate| candidate.slot == note.slot);
    if kept.is_some_and(|kept| kept.position <= wanted) {
        return Ok(());
    }
    let oldest = all.first();
    Err(gone(
        from,
        oldest.map(|oldest| format!("{}, of {oldest}", oldest.position)),
    ))
}

/// The bookmarks and the relay's slot, the oldest position first.
fn candidates(slot: &str, rows: Vec<SlotRow>) -> Vec<Candidate> {
    let live = rows.iter().find(|row| row.name == slot).cloned();
    let live = live.map(|row| Bookmark {
        name: String::new(),
        slot: row,
    });
    let mut all: Vec<Candidate> = bookmarks_among(slot, rows)
        .into_iter()
        .chain(live)
        .filter_map(|kept| {
            Some(Candidate {
                position: kept.position()?,
                since: kept.slot.unmoved_since,
                slot: kept.slot.name,
                bookmark: Some(kept.name).filter(|name| !name.is_empty()),
            })
        })
        .collect();
    all.sort_by_key(|candidate| candidate.position);
    all
}

fn named<'c>(
    candidates: &'c [Candidate],
    slot: &str,
    name: &str,
) -> Result<&'c Candidate, Failure> {
    let found = candidates
        .iter()
        .find(|found| found.bookmark.as_deref() == Some(name));
    found.ok_or_else(|| unknown(slot, name))
}

/// The newest one that has what was committed from this position on.
fn reaching(candidates: &[Candidate], from: Lsn, end: Lsn) -> Result<&Candidate, Failure> {
    if from > end {
        return Err(range(format!("the log ends at {end}, before {from}")));
    }
    let found = candidates.iter().rfind(|found| found.position <= from);
    found.ok_or_else(|| {
        let oldest = candidates.first();
        let oldest = oldest.map(|oldest| format!("{}, of {oldest}", oldest.position));
        gone(&from.to_string(), oldest)
    })
}

/// The newest one that was there at this time, or that has a transaction committed at this time or before.
async fn committed<'c>(
    candidates: &'c [Candidate],
    from: OffsetDateTime,
    server: &Server,
    end: Lsn,
) -> Result<(&'c Candidate, PgTimestamp), Failure> {
    let time = timestamp(from)?;
    let mut oldest = None;
    for candidate in candidates.iter().rev() {
        // Without reading the log, where the server tells so much.
        let mut known = candidate.since;
        if known.is_none_or(|since| since > time) {
            let first = server.first_commit(&candidate.slot, end).await?;
            known = known.into_iter().chain(first).min();
        }
        match known {
            Some(known) if known <= time => return Ok((candidate, time)),
            Some(known) => oldest = Some((candidate, known)),
            None => {}
        }
    }
    let oldest = oldest.map(|(candidate, known)| format!("{known}, of {candidate}"));
    Err(gone(&from.format(&Rfc3339).unwrap_or_default(), oldest))
}

fn timestamp(time: OffsetDateTime) -> Result<PgTimestamp, Failure> {
    let micros = i64::try_from(time.unix_timestamp_nanos() / 1000).ok();
    let time = micros.and_then(PgTimestamp::from_unix_micros);
    time.ok_or_else(|| range("the time is out of Postgres' range".to_owned()))
}

fn range(what: String) -> Failure {
    Failure::new("replay-range", Exit::Usage, what)
        .remedy("name another beginning or end: walrelay bookmark list --times")
}

/// `oldest`: what can be replayed, if anything.
fn gone(from: &str, oldest: Option<String>) -> Failure {
    let what = format!(
        "{from} is no longer retained: {}",
        match oldest {
            Some(oldest) => format!("the oldest that can be replayed is {oldest}"),
            None => "nothing that was committed can be replayed".to_owned(),
        }
    );
    Failure::new("replay-gone", Exit::Usage, what).remedy(
        "begin there, or keep more for the next time: [retention] keep, or walrelay bookmark create",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, at: u64, status: &str) -> SlotRow {
        SlotRow {
            name: name.to_owned(),
            confirmed: Some(Lsn::new(at)),
            wal_status: Some(status.to_owned()),
            ..SlotRow::default()
        }
    }

    #[test]
    fn the_newest_that_reaches_is_taken_and_the_oldest_named() {
        let all = candidates(
            "s",
            vec![
                row("s", 90, "reserved"),
                row("s_bookmark_lost", 10, "lost"),
                row("s_bookmark_old", 20, "extended"),
                row("s_bookmark_new", 50, "reserved"),
                row("other", 1, "reserved"),
            ],
        );
        let of = |lsn| reaching(&all, Lsn::new(lsn), Lsn::new(100)).map(ToString::to_string);
        assert_eq!(of(100).unwrap(), "slot s");
        assert_eq!(of(89).unwrap(), "bookmark new");
        assert_eq!(of(50).unwrap(), "bookmark new");
        assert_eq!(of(49).unwrap(), "bookmark old");
        let gone = of(19).unwrap_err();
        assert_eq!(gone.id, "replay-gone");
        assert!(gone.what.contains("0/14, of bookmark old"), "{gone}");
        assert_eq!(of(101).unwrap_err().id, "replay-range");
        assert!(named(&all, "s", "old").is_ok());
        assert_eq!(named(&all, "s", "lost").unwrap_err().id, "bookmark-unknown");
        let none = reaching(&[], Lsn::new(1), Lsn::new(2)).unwrap_err();
        assert!(none.what.contains("nothing"), "{none}");
    }
}
