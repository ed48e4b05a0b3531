//! Keeps a copy of a slot as a bookmark before a command takes the slot away or moves it.

use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;
use walrelay_postgres_source::{KeptBy, bookmark_slot, copy_slot, slots};
use walrelay_relay::Chain;
use walrelay_walsender::Session;

/// A bookmark that was kept.
#[derive(Debug)]
pub(crate) struct KeptBookmark {
    /// The bookmark's name.
    pub(crate) name: String,
    /// Its slot.
    pub(crate) slot: String,
}

/// Copies a slot to the bookmark of this command, with a number if there is one already.
pub(crate) async fn keep_bookmark(
    session: &mut Session,
    slot: &str,
    by: KeptBy,
) -> Result<KeptBookmark, Failure> {
    let failed = |why: String| {
        let what =
            format!("slot {slot} stays as it is, because no copy of it can be kept as a bookmark");
        Failure::new("bookmark-copy", Exit::Temporary, what)
            .caused_by(why)
            .remedy(
                "drop a bookmark that is not needed (walrelay bookmark list), or raise max_replication_slots. Or say \
                 --no-bookmark: then there is no copy",
            )
    };
    let slots = slots(session).await?;
    let position = |name: &str| -> Option<Option<Lsn>> {
        let slot = slots.iter().find(|slot| slot.name == name);
        slot.map(|slot| slot.confirmed)
    };
    let (stem, mut number) = (by.name(), 1);
    loop {
        let name = match number {
            1 => stem.to_owned(),
            number => format!("{stem}_{number}"),
        };
        let copy = bookmark_slot(slot, &name).map_err(failed)?;
        match position(&copy) {
            // A command that was interrupted has made it.
            Some(kept) if Some(kept) == position(slot) => {}
            Some(_) => {
                number += 1;
                continue;
            }
            None => {
                let copied = session.query(&copy_slot(slot, &copy, false)).await;
                copied.map_err(|error| failed(Chain(&error).to_string()))?;
            }
        }
        return Ok(KeptBookmark { name, slot: copy });
    }
}

/// Says what a bookmark that was kept is for.
pub(crate) fn kept_notice(kept: &KeptBookmark) -> String {
    format!(
        "Postgres keeps the log from there on for bookmark {name}, so drop it soon: walrelay bookmark drop {name}",
        name = kept.name
    )
}
