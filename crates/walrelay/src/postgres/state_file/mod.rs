//! The state file: how far a relay has come, beside the slot.
//!
//! ```text
//! # walrelay: how far this relay has come. Written by it; docs/OPERATIONS.md says what for.
//! version = 1
//! system_identifier = "7431234567890123456"
//! timeline = 1
//! database = "app"
//! slot = "walrelay"
//! confirmed = "0/16B6A48"
//! sha256 = "…"
//! ```
//!
//! The last line is the SHA-256 of all before it: a file that was cut off or changed is not taken
//! for a position.

mod writer;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::Resume;
use walrelay_sink::Disposition;

pub(super) use writer::StateWriter;

const VERSION: i64 = 1;
const HEAD: &str =
    "# walrelay: how far this relay has come. Written by it; docs/OPERATIONS.md says what for.\n";
const SEAL: &str = "sha256 = \"";

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    /// `system_identifier` of the server.
    pub(crate) system_id: String,
    /// Its timeline.
    pub(crate) timeline: u32,
    /// The database that the slot decodes.
    pub(crate) database: String,
    /// The slot.
    pub(crate) slot: String,
    /// Everything up to here is acknowledged. The slot's `confirmed_flush_lsn` is not beyond it,
    /// unless somebody else moved it.
    pub(crate) confirmed: Lsn,
}

impl Position {
    /// The position for a check of continuity; `server_start` as in [`Resume`], where this process knows it.
    pub(crate) fn resume(&self, server_start: Option<String>) -> Resume {
        let confirmed = CommitEnd::from_slot(self.confirmed);
        Resume {
            system_id: self.system_id.clone(),
            timeline: self.timeline,
            server_start,
            confirmed,
            seen: confirmed,
        }
    }

    fn text(&self) -> String {
        // Nothing in it needs to be escaped: digits, a slot's name, and a string that TOML writes.
        let database = toml::Value::String(self.database.clone());
        let text = format!(
            "{HEAD}version = {VERSION}\nsystem_identifier = \"{}\"\ntimeline = {}\n\
             database = {database}\nslot = \"{}\"\nconfirmed = \"{}\"\n",
            self.system_id, self.timeline, self.slot, self.confirmed
        );
        let seal = seal(&text);
        format!("{text}{SEAL}{seal}\"\n")
    }

    fn parse(text: &str) -> Result<Self, Unreadable> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            #[serde(rename = "version")]
            _version: i64,
            system_identifier: String,
            timeline: u32,
            database: String,
            slot: String,
            confirmed: String,
        }
        let (sealed, rest) = text.rsplit_once(SEAL).ok_or(Unreadable::Broken)?;
        let found = rest.strip_suffix("\"\n").ok_or(Unreadable::Broken)?;
        if found != seal(sealed) {
            return Err(Unreadable::Broken);
        }
        // The seal fits, so an unknown field is of another version.
        let table: toml::Table = sealed.parse().map_err(|_| Unreadable::Broken)?;
        let version = table.get("version").and_then(toml::Value::as_integer);
        if version != Some(VERSION) {
            return Err(Unreadable::Version(version));
        }
        let fields: Fields = table.try_into().map_err(|_| Unreadable::Broken)?;
        Ok(Self {
            system_id: fields.system_identifier,
            timeline: fields.timeline,
            database: fields.database,
            slot: fields.slot,
            confirmed: fields.confirmed.parse().map_err(|_| Unreadable::Broken)?,
        })
    }
}

fn seal(text: &str) -> String {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    Broken,
    Version(Option<i64>),
}

/// The state file cannot be used. Nothing was confirmed that it does not hold.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateFileError {
    #[error("the state file {} cannot be read", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the state file {} cannot be written", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// Its content is not what was written to it.
    #[error("the state file {} is cut off, or was changed", path.display())]
    Broken { path: PathBuf },
    /// Another version of walrelay wrote it.
    #[error(
        "the state file {} is of version {}, this walrelay knows version {VERSION}",
        path.display(),
        found.map_or_else(|| "?".to_owned(), |found| found.to_string())
    )]
    Version { path: PathBuf, found: Option<i64> },
    /// It belongs to another relay.
    #[error("the state file {} is of {what} {found}, not {wanted}", path.display())]
    Foreign {
        path: PathBuf,
        /// `slot` or `database`.
        what: &'static str,
        found: String,
        wanted: String,
    },
}

impl StateFileError {
    pub(crate) fn disposition(&self) -> Disposition {
        use io::ErrorKind as Kind;
        match self {
            // A full disk or a file system that is away may pass; a wrong path does not.
            StateFileError::Read { source, .. } | StateFileError::Write { source, .. } => {
                match source.kind() {
                    Kind::NotFound
                    | Kind::PermissionDenied
                    | Kind::NotADirectory
                    | Kind::IsADirectory
                    | Kind::ReadOnlyFilesystem
                    | Kind::InvalidFilename => Disposition::Configuration,
                    _ => Disposition::Retryable,
                }
            }
            StateFileError::Broken { .. }
            | StateFileError::Version { .. }
            | StateFileError::Foreign { .. } => Disposition::Configuration,
        }
    }

    /// What the operating system says, if it was that.
    pub(crate) fn io(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Some(source.to_string()),
            _ => None,
        }
    }

    /// What to do about it.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Read { .. } | Self::Write { .. } => {
                "[source] state_file names a file in a directory that exists, in which the relay's \
                 user may create and rename files"
            }
            Self::Broken { .. } | Self::Version { .. } => {
                "restore it, or remove it: the relay then takes the slot as it finds it, and cannot \
                 tell whether somebody moved or re-created it meanwhile"
            }
            Self::Foreign { .. } => {
                "give each relay a state file of its own, or remove the file if it is an old one"
            }
        }
    }
}

/// Reads the position; `None` if there is no such file.
///
/// # Errors
/// As [`StateFileError`] says.
pub(crate) fn read(path: &Path) -> Result<Option<Position>, StateFileError> {
    let path = path.to_owned();
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StateFileError::Read { path, source }),
    };
    match str::from_utf8(&bytes).map(Position::parse) {
        Ok(Ok(position)) => Ok(Some(position)),
        Ok(Err(Unreadable::Version(found))) => Err(StateFileError::Version { path, found }),
        Ok(Err(Unreadable::Broken)) | Err(_) => Err(StateFileError::Broken { path }),
    }
}

/// Writes the position. When this returns, it is on disk; if it fails, or the machine does, the
/// file holds either this position or the one before.
///
/// # Errors
/// [`StateFileError::Write`].
pub(super) fn write(path: &Path, position: &Position) -> Result<(), StateFileError> {
    replace(path, &position.text()).map_err(|source| StateFileError::Write {
        path: path.to_owned(),
        source,
    })
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    // In the same directory: a rename is atomic within a file system only.
    let mut beside = OsString::from(path);
    beside.push(".new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    drop(file);
    fs::rename(&beside, path)?;
    // The rename itself is durable when the directory is.
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests;
