//! [`Notes`]: samples of the relay's position in a file, so that they survive a restart.
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
use tracing::warn;
use walrelay_lsn::Lsn;

use walrelay_observe::millis_now;
use walrelay_postgres_source::{replace_file, with_checksum, without_checksum};

const VERSION: u32 = 1;
const HEAD: &str =
    "# walrelay: where this relay was, and when. Written by it, for the rolling bookmark.\n";
const SUFFIX: &str = ".bookmark";

/// The file of the samples. It is beside the state file.
#[derive(Debug)]
pub(super) struct Notes {
    path: PathBuf,
    slot: String,
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
    pub(super) fn beside(state_file: &Path, slot: &str) -> Self {
        let mut path = OsString::from(state_file);
        path.push(SUFFIX);
        Self {
            path: path.into(),
            slot: slot.to_owned(),
        }
    }

    /// Reads the samples of this slot of the server, oldest first, each with its age. A file that
    /// cannot be used counts as none: the bookmark then stays for longer than it need.
    pub(super) fn read(&self, system_id: &str) -> Vec<(Duration, Lsn)> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    warn!(file = %self.path.display(), %error, "the rolling bookmark's notes are not used");
                }
                return Vec::new();
            }
        };
        let content = without_checksum(&text).and_then(|text| toml::from_str::<Content>(text).ok());
        let Some(content) = content.filter(|content| content.version == VERSION) else {
            let why = "it is cut off, or was changed, or is of another version";
            warn!(file = %self.path.display(), error = why, "the rolling bookmark's notes are not used");
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

    /// Writes the samples, each with its age.
    pub(super) fn write(
        &self,
        system_id: &str,
        samples: impl Iterator<Item = (Duration, Lsn)>,
    ) -> io::Result<()> {
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
        replace_file(&self.path, &with_checksum(text))
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn samples_are_read_as_they_were_written_and_only_for_their_slot() {
        let dir = TempDir::with_prefix("walrelay-notes-").unwrap();
        let state = dir.path().join("state");
        let notes = Notes::beside(&state, "walrelay");
        assert!(notes.read("7").is_empty(), "there is no file");
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let samples = [(hours(30), Lsn::new(16)), (hours(1), Lsn::new(32))];
        notes.write("7", samples.into_iter()).unwrap();
        let found = notes.read("7");
        let positions: Vec<Lsn> = found.iter().map(|(_, position)| *position).collect();
        assert_eq!(positions, [Lsn::new(16), Lsn::new(32)]);
        for ((age, _), (written, _)) in found.iter().zip(samples) {
            assert!(*age >= written && *age < written + hours(1), "{age:?}");
        }
        assert!(notes.read("8").is_empty(), "another server");
        assert!(Notes::beside(&state, "other").read("7").is_empty());
        let path = dir.path().join("state.bookmark");
        let text = fs::read_to_string(&path).unwrap();
        for changed in [
            text.replace("0/20", "0/30"),
            text[..40].to_owned(),
            String::new(),
        ] {
            fs::write(&path, &changed).unwrap();
            assert!(notes.read("7").is_empty(), "{changed}");
        }
    }
}
