//! `walrelay bookmark`: creates, lists, advances and drops bookmarks of the relay's slot.

use serde::Serialize;
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::{
    Bookmark, ROLLING, SlotRow, bookmark_slot, bookmarks, copy_slot, is_kept, slots,
};
use walrelay_walsender::Session;

use crate::cli::{
    AdvanceBookmarkArgs, AdvanceTo, BookmarkCommand, CreateBookmarkArgs, DropBookmarkArgs,
    ListBookmarksArgs,
};
use crate::commands::assembly::block_on;
use crate::commands::assembly::server::Server;
use crate::commands::database::slots::{advance_slot, drop_slot};
use crate::commands::terminal::units::{Column, bytes, list_text};
use crate::commands::{CommandResult, EnvVars, print_line, print_text};

/// Runs `walrelay bookmark`.
pub(crate) fn bookmark(command: &BookmarkCommand, env: EnvVars<'_>) -> CommandResult {
    let config = match command {
        BookmarkCommand::List(args) => &args.list.config,
        BookmarkCommand::Create(args) => &args.change.config,
        BookmarkCommand::Drop(args) => &args.ask.change.config,
        BookmarkCommand::Advance(args) => &args.ask.change.config,
    };
    let server = Server::load(config, env)?;
    Ok(block_on(Box::pin(async {
        match command {
            BookmarkCommand::List(args) => list(args, server).await,
            BookmarkCommand::Create(args) => create(args, server).await,
            BookmarkCommand::Drop(args) => drop_bookmark(args, server).await,
            BookmarkCommand::Advance(args) => advance(args, server).await,
        }
    }))??)
}

/// Returns the name of a bookmark's slot.
fn slot_name(server: &Server, name: &str) -> Result<String, Failure> {
    bookmark_slot(server.slot(), name).map_err(|why| {
        Failure::new("bookmark-name", Exit::Usage, why).remedy("choose a shorter, plain name")
    })
}

/// Returns the name of the slot of an existing bookmark.
async fn existing_slot(
    server: &Server,
    session: &mut Session,
    name: &str,
) -> Result<String, Failure> {
    let slot = slot_name(server, name)?;
    let all = bookmarks(session, server.slot()).await?;
    if all.iter().any(|bookmark| bookmark.name == name) {
        return Ok(slot);
    }
    Err(unknown_bookmark(server.slot(), name))
}

/// Returns the failure that a bookmark does not exist.
pub(crate) fn unknown_bookmark(slot: &str, name: &str) -> Failure {
    let what = format!("there is no bookmark {name} of slot {slot}");
    Failure::new("bookmark-unknown", Exit::Usage, what)
        .remedy("walrelay bookmark list shows those there are")
}

async fn create(args: &CreateBookmarkArgs, server: Server) -> Result<(), Failure> {
    let (name, live) = (&args.name, server.slot());
    let slot = slot_name(&server, name)?;
    if name == ROLLING {
        let what = "the bookmark rolling is the one that the running relay keeps";
        return Err(Failure::new("bookmark-name", Exit::Usage, what)
            .remedy("choose another name, or set keep in [retention] to have it kept"));
    }
    if is_kept(name) {
        let what = format!(
            "bookmarks named {name} are those that walrelay keeps of a slot before it drops or advances it"
        );
        return Err(Failure::new("bookmark-name", Exit::Usage, what)
            .remedy("choose another name: such bookmarks are dropped at max_wal of [retention]"));
    }
    let mut session = server.connect().await?;
    let all = slots(&mut session).await?;
    if all.iter().any(|existing| existing.name == slot) {
        let what = format!("bookmark {name} exists already");
        return Err(Failure::new("bookmark-exists", Exit::Usage, what).remedy(
            "choose another name, or move it to the relay's position: walrelay bookmark advance",
        ));
    }
    let original = relay_slot(&all, live)?;
    let sql = copy_slot(live, &slot, false);
    if args.change.dry_run {
        return print_line(&format!("{sql};"));
    }
    session.query(&sql).await?;
    session.close().await;
    let at = original
        .confirmed
        .map_or_else(String::new, |at| format!(" at {at}"));
    print_line(&format!(
        "created bookmark {name}{at}: events from there on can be replayed, and the server keeps \
         WAL for it in slot {slot}"
    ))
}

/// Returns the row of the relay's slot.
fn relay_slot<'s>(all: &'s [SlotRow], slot: &str) -> Result<&'s SlotRow, Failure> {
    all.iter()
        .find(|existing| existing.name == slot)
        .ok_or_else(|| {
            let what = format!("there is no replication slot {slot}");
            Failure::new("slot-unknown", Exit::Usage, what).remedy("walrelay slots list")
        })
}

async fn advance(args: &AdvanceBookmarkArgs, server: Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let slot = existing_slot(&server, &mut session, &args.name).await?;
    let all = slots(&mut session).await?;
    let live = relay_slot(&all, server.slot())?.confirmed;
    let to = match (args.to, live) {
        (Some(to), Some(live)) if to > live => {
            let what = format!("the relay is at {live}, before {to}");
            return Err(Failure::new("slot-position", Exit::Usage, what)
                .remedy("choose an earlier position; without --to it is the relay's own"));
        }
        (Some(to), _) => to,
        (None, Some(live)) => live,
        (None, None) => return Err(unknown_bookmark(server.slot(), &args.name)),
    };
    let consequence = "events in them can no longer be replayed from this bookmark";
    let to = AdvanceTo::Lsn(to);
    advance_slot(session, &slot, to, &args.ask, None, consequence).await
}

async fn drop_bookmark(args: &DropBookmarkArgs, server: Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let slot = existing_slot(&server, &mut session, &args.name).await?;
    drop_slot(session, &slot, &args.name, &args.ask, None, |slot| {
        let from = slot
            .confirmed
            .map_or_else(String::new, |from| format!(" from {from} on"));
        format!("events committed{from} can no longer be replayed from it")
    })
    .await
}

async fn list(args: &ListBookmarksArgs, server: Server) -> Result<(), Failure> {
    let mut session = server.connect().await?;
    let bookmarks = bookmarks(&mut session, server.slot()).await?;
    session.close().await;
    let end = if args.times && !bookmarks.is_empty() {
        Some(server.identify().await?.flushed)
    } else {
        None
    };
    let mut listed = Vec::with_capacity(bookmarks.len());
    for bookmark in bookmarks {
        let first = match end {
            Some(end) if bookmark.position().is_some() => {
                server.first_commit(&bookmark.slot.name, end).await?
            }
            _ => None,
        };
        listed.push((bookmark, first.map(|first| first.to_string())));
    }
    // The last column is that of the times.
    let columns = &COLUMNS[..COLUMNS.len() - usize::from(!args.times)];
    let text = list_text(args.list.output, &listed, columns, bookmark_json)?;
    print_text(&text)
}

/// A bookmark, and the time of its first commit where `--times` asks for it.
type ListedBookmark = (Bookmark, Option<String>);

const COLUMNS: [Column<ListedBookmark>; 6] = [
    ("BOOKMARK", |(bookmark, _)| Some(bookmark.name.clone())),
    ("SLOT", |(bookmark, _)| Some(bookmark.slot.name.clone())),
    ("POSITION", |(bookmark, _)| {
        bookmark.position().map(|at| at.to_string())
    }),
    ("RETAINED", |(bookmark, _)| {
        bookmark.slot.retained.map(bytes)
    }),
    ("WAL", |(bookmark, _)| bookmark.slot.wal_status.clone()),
    ("FIRST COMMIT", |(_, first)| first.clone()),
];

/// A bookmark in the output format `json`.
#[derive(Serialize)]
struct BookmarkJson<'a> {
    bookmark: &'a str,
    slot: &'a str,
    position: Option<Lsn>,
    retained_bytes: Option<u64>,
    wal_status: Option<&'a str>,
    first_commit: Option<&'a str>,
}

fn bookmark_json((bookmark, first): &ListedBookmark) -> BookmarkJson<'_> {
    BookmarkJson {
        bookmark: &bookmark.name,
        slot: &bookmark.slot.name,
        position: bookmark.position(),
        retained_bytes: bookmark.slot.retained,
        wal_status: bookmark.slot.wal_status.as_deref(),
        first_commit: first.as_deref(),
    }
}
