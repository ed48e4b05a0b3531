//! `walrelay bookmark`: kept positions of the relay's slot are created, listed, advanced and dropped.

use std::io::{self, Write};

use serde::Serialize;
use walrelay_walsender::Session;

use super::connect::block_on;
use super::server::{Server, failure};
use super::slots::{advance_slot, drop_slot, say};
use super::units::{bytes, columns};
use super::{Ended, Env, output};
use crate::cli::{
    AdvanceBookmarkArgs, AdvanceTo, BookmarkArgs, BookmarkCommand, CreateBookmarkArgs,
    DropBookmarkArgs, Exit, Failure, ListBookmarksArgs, Output,
};
use crate::postgres::{Bookmark, ROLLING, SlotRow, bookmark_slot, bookmarks, copy_slot, slots};

/// `walrelay bookmark`.
pub(crate) fn bookmark(args: &BookmarkArgs, env: Env<'_>) -> Ended {
    let config = match &args.command {
        BookmarkCommand::List(args) => &args.list.config,
        BookmarkCommand::Create(args) => &args.change.config,
        BookmarkCommand::Drop(args) => &args.ask.change.config,
        BookmarkCommand::Advance(args) => &args.ask.change.config,
    };
    let server = Server::of(config, env)?;
    Ok(block_on(Box::pin(async {
        match &args.command {
            BookmarkCommand::List(args) => list(args, server).await,
            BookmarkCommand::Create(args) => create(args, server).await,
            BookmarkCommand::Drop(args) => drop_bookmark(args, server).await,
            BookmarkCommand::Advance(args) => advance(args, server).await,
        }
    }))??)
}

/// The slot of a bookmark by its name.
fn named(server: &Server, name: &str) -> Result<String, Failure> {
    bookmark_slot(server.slot(), name).map_err(|why| {
        Failure::new("bookmark-name", Exit::Usage, why).remedy("choose a shorter, plain name")
    })
}

/// The slot of a bookmark that exists.
async fn existing(server: &Server, session: &mut Session, name: &str) -> Result<String, Failure> {
    let slot = named(server, name)?;
    let all = bookmarks(session, server.slot()).await.map_err(failure)?;
    if all.iter().any(|bookmark| bookmark.name == name) {
        return Ok(slot);
    }
    Err(unknown(server.slot(), name))
}

/// There is no such bookmark.
pub(super) fn unknown(slot: &str, name: &str) -> Failure {
    let what = format!("there is no bookmark {name} of slot {slot}");
    Failure::new("bookmark-unknown", Exit::Usage, what)
        .remedy("walrelay bookmark list shows those there are")
}

async fn create(args: &CreateBookmarkArgs, server: Server) -> Result<(), Failure> {
    let (name, live) = (&args.name, server.slot());
    let slot = named(&server, name)?;
    if name == ROLLING {
        let what = "the bookmark rolling is the one that the running relay keeps";
        return Err(Failure::new("bookmark-name", Exit::Usage, what)
            .remedy("choose another name, or set keep in [retention] to have it kept"));
    }
    let mut session = server.connect().await?;
    let all = slots(&mut session).await.map_err(failure)?;
    if all.iter().any(|found| found.name == slot) {
        let what = format!("bookmark {name} exists already");
        return Err(Failure::new("bookmark-exists", Exit::Usage, what).remedy(
            "choose another name, or move it to the relay's position: walrelay bookmark advance",
        ));
    }
    let original = of_relay(&all, live)?;
    let sql = copy_slot(live, &slot, false);
    if args.change.dry_run {
        return say(&format!("{sql};"));
    }
    session.query(&sql).await.map_err(failure)?;
    session.close().await;
    let at = original
        .confirmed
        .map_or_else(String::new, |at| format!(" at {at}"));
    say(&format!(
        "created bookmark {name}{at}: what is committed from there on can be replayed, and the server keeps \
         WAL for it in slot {slot}"
    ))
}

/// The slot that the relay reads.
pub(super) fn of_relay<'s>(all: &'s [SlotRow], slot: &str) -> Result<&'s SlotRow, Failure> {
    all.iter().find(|found| found.name == slot).ok_or_else(|| {
        let what = format!("there is no replication slot {slot}");
        Failure::new("slot-unknown", Exit::Usage, what).remedy("walrelay slots list")
    })
}

async fn advance(args: &AdvanceBookmarkArgs, server: Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let slot = existing(&server, &mut session, &args.name).await?;
    let all = slots(&mut session).await.map_err(failure)?;
    let live = of_relay(&all, server.slot())?.confirmed;
    let to = match (args.to, live) {
        (Some(to), Some(live)) if to > live => {
            let what = format!("the relay is at {live}, before {to}");
            return Err(Failure::new("slot-position", Exit::Usage, what)
                .remedy("choose an earlier position; without --to it is the relay's own"));
        }
        (Some(to), _) => to,
        (None, Some(live)) => live,
        (None, None) => return Err(unknown(server.slot(), &args.name)),
    };
    let passed = "events in them can no longer be replayed from this bookmark";
    let to = AdvanceTo::Lsn(to);
    advance_slot(session, &slot, to, (&args.ask).into(), passed).await
}

async fn drop_bookmark(args: &DropBookmarkArgs, server: Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let slot = existing(&server, &mut session, &args.name).await?;
    drop_slot(session, &slot, &args.name, (&args.ask).into(), |slot| {
        let from = slot
            .confirmed
            .map_or_else(String::new, |from| format!(" from {from} on"));
        format!("what was committed{from} can no longer be replayed from it")
    })
    .await
}

async fn list(args: &ListBookmarksArgs, server: Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let found = bookmarks(&mut session, server.slot())
        .await
        .map_err(failure)?;
    session.close().await;
    let end = if args.times && !found.is_empty() {
        Some(server.system().await?.flushed)
    } else {
        None
    };
    let mut listed = Vec::with_capacity(found.len());
    for bookmark in found {
        let first = match end {
            Some(end) if bookmark.position().is_some() => {
                server.first_commit(&bookmark.slot.name, end).await?
            }
            _ => None,
        };
        listed.push((bookmark, first.map(|first| first.to_string())));
    }
    let mut out = Vec::new();
    match args.list.output {
        Output::Table => table(&listed, args.times, &mut out).map_err(output)?,
        Output::Json => listed
            .iter()
            .try_for_each(|(bookmark, first)| line(bookmark, first.as_deref(), &mut out))
            .map_err(output)?,
    }
    io::stdout().write_all(&out).map_err(output)
}

fn table(found: &[(Bookmark, Option<String>)], times: bool, out: &mut dyn Write) -> io::Result<()> {
    let head = ["BOOKMARK", "SLOT", "POSITION", "RETAINED", "WAL"];
    let mut head = head.map(str::to_owned).to_vec();
    if times {
        head.push("FIRST COMMIT".to_owned());
    }
    let mut rows: Vec<Vec<String>> = vec![head];
    let optional = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for (bookmark, first) in found {
        let slot = &bookmark.slot;
        let mut row = vec![
            bookmark.name.clone(),
            slot.name.clone(),
            optional(bookmark.position().map(|at| at.to_string())),
            optional(slot.retained.map(bytes)),
            optional(slot.wal_status.clone()),
        ];
        if times {
            row.push(optional(first.clone()));
        }
        rows.push(row);
    }
    columns(&rows, out)
}

/// A bookmark as a program sees it.
#[derive(Serialize)]
struct Line<'a> {
    bookmark: &'a str,
    slot: &'a str,
    position: Option<String>,
    retained_bytes: Option<u64>,
    wal_status: Option<&'a str>,
    first_commit: Option<&'a str>,
}

/// One object on a line.
fn line(bookmark: &Bookmark, first: Option<&str>, out: &mut Vec<u8>) -> io::Result<()> {
    let line = Line {
        bookmark: &bookmark.name,
        slot: &bookmark.slot.name,
        position: bookmark.position().map(|at| at.to_string()),
        retained_bytes: bookmark.slot.retained,
        wal_status: bookmark.slot.wal_status.as_deref(),
        first_commit: first,
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}
