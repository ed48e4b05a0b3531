//! [`Notes`]: samples of the relay's position, so that they survive a restart: in a file beside the
//! state file, or in a table of the database if there is none.
//!
//! ```text
//! # walrelay: where this relay was, and when. Written by it, for the rolling bookmark.
//! version = 1
//! system_identifier = "7431234567890123456"
//! slot = "walrelay"
//! samples = [
//!   [1764180000000, "0/16B6A48"],
//! ]
//! sha256 = "…"
//! ```

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use serde::Deserialize;
use tracing::{debug, warn};
use walrelay_lsn::Lsn;
use walrelay_walsender::{Error, Session};

use walrelay_observe::millis_now;
use walrelay_postgres_source::{
    read_notes, replace_file, with_checksum, without_checksum, write_notes,
};

const VERSION: u32 = 1;
const HEAD: &str =
    "# walrelay: where this relay was, and when. Written by it, for the rolling bookmark.\n";
const SUFFIX: &str = ".bookmark";

/// The store of the samples.
#[derive(Debug)]
pub(super) struct Notes {
    store: Store,
    slot: String,
}

#[derive(Debug)]
enum Store {
    /// Beside the state file.
    File(PathBuf),
    /// A table of the database. False: this role may not write there.
    Table(bool),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    system_identifier: String,
    slot: String,
    /// Milliseconds since 1970-01-01 UTC, and the position.
    samples: Vec<(u64, String)>,
}

impl Notes {
    /// Opens the samples of a slot: beside the state file, or in the database.
    pub(super) fn open(slot: &str, state_file: Option<&Path>) -> Self {
        let store = state_file.map_or(Store::Table(true), |state_file| {
            let mut path = OsString::from(state_file);
            path.push(SUFFIX);
            Store::File(path.into())
        });
        let slot = slot.to_owned();
        Self { store, slot }
    }

    /// Reads the samples of this slot of the server, oldest first, each with its age. Notes that
    /// cannot be used count as none: the bookmark then stays for longer than it need.
    pub(super) async fn read(
        &self,
        session: &mut Session,
        system_id: &str,
    ) -> Result<Vec<(Duration, Lsn)>, Error> {
        let text = match &self.store {
            Store::Table(_) => read_notes(session, &self.slot).await?,
            Store::File(path) => match fs::read_to_string(path) {
                Ok(text) => Some(text),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => {
                    warn!(file = %path.display(), %error, "the rolling bookmark's notes are not used");
                    None
                }
            },
        };
        Ok(text.map_or_else(Vec::new, |text| self.parse(&text, system_id)))
    }

    fn parse(&self, text: &str, system_id: &str) -> Vec<(Duration, Lsn)> {
        let content = without_checksum(text).and_then(|text| toml::from_str::<Content>(text).ok());
        let Some(content) = content.filter(|content| content.version == VERSION) else {
            let why = "they are cut off, or were changed, or are of another version";
            warn!(notes = ?self.store, error = why, "the rolling bookmark's notes are not used");
            return Vec::new();
        };
        if content.system_identifier != system_id || content.slot != self.slot {
            return Vec::new();
        }
        let now = millis_now();
        let samples = content.samples.into_iter();
        let samples = samples
            .filter_map(|(at, position)| Some((now.checked_sub(at)?, position.parse().ok()?)));
        samples
            .map(|(age, position)| (Duration::from_millis(age), position))
            .collect()
    }

    /// Writes the samples, each with its age. Where that cannot be, it is logged.
    pub(super) async fn write(
        &mut self,
        session: &mut Session,
        system_id: &str,
        samples: impl Iterator<Item = (Duration, Lsn)>,
    ) -> Result<(), Error> {
        let text = self.text(system_id, samples);
        match &mut self.store {
            Store::File(path) => {
                if let Err(error) = replace_file(path, &text) {
                    debug!(%error, "the rolling bookmark's notes are not written");
                }
            }
            Store::Table(writable) => {
                if *writable && !write_notes(session, &self.slot, &text).await? {
                    *writable = false;
                    warn!(
                        "the rolling bookmark stays where it is for the time to keep after each start: there is no \
                         state_file, and this role may not write the table walrelay_state.bookmark"
                    );
                }
            }
        }
        Ok(())
    }

    fn text(&self, system_id: &str, samples: impl Iterator<Item = (Duration, Lsn)>) -> String {
        let now = millis_now();
        let mut text = format!(
            "{HEAD}version = {VERSION}\nsystem_identifier = \"{system_id}\"\nslot = \"{}\"\nsamples = [\n",
            self.slot
        );
        for (age, position) in samples {
            let at = now.saturating_sub(age.as_millis() as u64);
            // Writing to a string does not fail.
            let _ = writeln!(text, "  [{at}, \"{position}\"],");
        }
        text.push_str("]\n");
        with_checksum(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_as_they_were_written_and_only_for_their_slot() {
        let notes = Notes::open("walrelay", None);
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let samples = [(hours(30), Lsn::new(16)), (hours(1), Lsn::new(32))];
        let text = notes.text("7", samples.into_iter());
        let found = notes.parse(&text, "7");
        let positions: Vec<Lsn> = found.iter().map(|(_, position)| *position).collect();
        assert_eq!(positions, [Lsn::new(16), Lsn::new(32)]);
        for ((age, _), (written, _)) in found.iter().zip(samples) {
            assert!(*age >= written && *age < written + hours(1), "{age:?}");
        }
        assert!(notes.parse(&text, "8").is_empty(), "another server");
        assert!(Notes::open("other", None).parse(&text, "7").is_empty());
        for changed in [
            text.replace("0/20", "0/30"),
            text[..40].to_owned(),
            String::new(),
        ] {
            assert!(notes.parse(&changed, "7").is_empty(), "{changed}");
        }
    }
}
