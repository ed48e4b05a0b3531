//! Selects the slot that still has the beginning of a replay, and the bounds of its range.

use std::fmt;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_pgoutput::PgTimestamp;
use walrelay_postgres_source::{Bookmark, SlotRow, bookmarks_among, slots};

use super::note::{self, Note};
use super::sink;
use crate::cli::{ReplayArgs, ReplayFrom, ReplayTo};
use crate::commands::assembly::server::Server;
use crate::commands::database::bookmark::unknown_bookmark;

/// A slot whose copy a replay can read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    slot: String,
    /// The name of the bookmark; `None` for the relay's own slot.
    bookmark: Option<String>,
    position: Lsn,
    /// The slot has been at `position` since this time or longer, so it has every transaction
    /// committed later (Postgres 17 and newer).
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

/// Returns the note of a new replay by the arguments.
pub(super) async fn plan_replay(args: &ReplayArgs, server: &Server) -> Result<Note, Failure> {
    let Some(from) = &args.from else {
        return Err(Failure::new(
            "replay-range",
            Exit::Usage,
            "--from is missing",
        )
        .remedy("say where the replay begins, for example --from BOOKMARK: walrelay bookmark list --times"));
    };
    let sink = sink(args, &server.config)?;
    let candidates = retained(server).await?;
    let system = server.identify().await?;
    let (candidate, after) = match from {
        ReplayFrom::Bookmark(name) => (named(&candidates, server.slot(), name)?, None),
        ReplayFrom::Lsn(lsn) => (at_position(&candidates, *lsn, system.flushed)?, None),
        ReplayFrom::Time(time) => {
            let (candidate, time) = at_time(&candidates, *time, server, system.flushed).await?;
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
        return Err(invalid_range(format!(
            "the log ends at {}, before {end}",
            system.flushed
        )));
    }
    if end < start
        || before
            .zip(after)
            .is_some_and(|(before, after)| before <= after)
    {
        return Err(invalid_range("the end is before the beginning".to_owned()));
    }
    Ok(Note {
        version: note::VERSION,
        id: format!("{:08x}", fastrand::u32(..)),
        relay_slot: server.slot().to_owned(),
        slot: candidate.slot.clone(),
        system_id: system.system_id,
        from: from.to_string(),
        start,
        end,
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

/// Fails if the rest of a replay can no longer be read.
pub(super) async fn check_retained(note: &Note, server: &Server) -> Result<(), Failure> {
    if server.identify().await?.system_id != note.system_id {
        let what = format!("replay {} was one of another server", note.id);
        return Err(Failure::new("replay-resume", Exit::Config, what)
            .remedy("name the configuration of that server with --config"));
    }
    let all = retained(server).await?;
    let from = note.resumes_at();
    let slot = all.iter().find(|candidate| candidate.slot == note.slot);
    if slot.is_some_and(|slot| slot.position <= from) {
        return Ok(());
    }
    Err(not_retained(from, oldest_position(&all)))
}

/// Returns the server's bookmarks of the relay's slot and that slot, the oldest position first.
async fn retained(server: &Server) -> Result<Vec<Candidate>, Failure> {
    let mut session = server.connect().await?;
    let rows = slots(&mut session).await?;
    session.close().await;
    Ok(candidates(server.slot(), rows))
}

/// Returns the relay's slot and its bookmarks among these slots, the oldest position first.
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
    let candidate = candidates
        .iter()
        .find(|candidate| candidate.bookmark.as_deref() == Some(name));
    candidate.ok_or_else(|| unknown_bookmark(slot, name))
}

/// Returns the newest candidate that has all transactions committed from this position on.
fn at_position(candidates: &[Candidate], from: Lsn, end: Lsn) -> Result<&Candidate, Failure> {
    if from > end {
        return Err(invalid_range(format!(
            "the log ends at {end}, before {from}"
        )));
    }
    let candidate = candidates
        .iter()
        .rfind(|candidate| candidate.position <= from);
    candidate.ok_or_else(|| not_retained(from, oldest_position(candidates)))
}

fn oldest_position(candidates: &[Candidate]) -> Option<String> {
    let oldest = candidates.first()?;
    Some(format!("{}, of {oldest}", oldest.position))
}

/// Returns the newest candidate that was at its position at this time, or that has a transaction
/// committed at this time or before: it has all transactions committed later.
async fn at_time<'c>(
    candidates: &'c [Candidate],
    from: OffsetDateTime,
    server: &Server,
    end: Lsn,
) -> Result<(&'c Candidate, PgTimestamp), Failure> {
    let time = timestamp(from)?;
    let mut oldest = None;
    for candidate in candidates.iter().rev() {
        // Reading the WAL is slow: only if the slot's `inactive_since` does not suffice.
        let mut earliest = candidate.since;
        if earliest.is_none_or(|since| since > time) {
            let first = server.first_commit(&candidate.slot, end).await?;
            earliest = earliest.into_iter().chain(first).min();
        }
        match earliest {
            Some(earliest) if earliest <= time => return Ok((candidate, time)),
            Some(earliest) => oldest = Some((candidate, earliest)),
            None => {}
        }
    }
    let oldest = oldest.map(|(candidate, earliest)| format!("{earliest}, of {candidate}"));
    Err(not_retained(
        from.format(&Rfc3339).unwrap_or_default(),
        oldest,
    ))
}

fn timestamp(time: OffsetDateTime) -> Result<PgTimestamp, Failure> {
    let micros = i64::try_from(time.unix_timestamp_nanos() / 1000).ok();
    let time = micros.and_then(PgTimestamp::from_unix_micros);
    time.ok_or_else(|| invalid_range("the time is out of Postgres' range".to_owned()))
}

fn invalid_range(what: String) -> Failure {
    Failure::new("replay-range", Exit::Usage, what)
        .remedy("name another beginning or end: walrelay bookmark list --times")
}

/// Returns the failure that the beginning is not retained; `oldest` is the first position or time
/// that is.
fn not_retained(from: impl fmt::Display, oldest: Option<String>) -> Failure {
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
    fn the_newest_retained_candidate_is_chosen() {
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
        let of = |lsn| at_position(&all, Lsn::new(lsn), Lsn::new(100)).map(ToString::to_string);
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
        let none = at_position(&[], Lsn::new(1), Lsn::new(2)).unwrap_err();
        assert!(none.what.contains("nothing"), "{none}");
    }
}
