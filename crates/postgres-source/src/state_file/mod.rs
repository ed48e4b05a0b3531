//! The state file: the acknowledged position of a relay, stored alongside the slot.
//!
//! ```text
//! # walrelay: how far this relay has come. Written by it; docs/operate/running.md says what for.
//! version = 2
//! system_identifier = "7431234567890123456"
//! timeline = 1
//! database = "app"
//! slot = "walrelay"
//! confirmed = "0/16B6A48"
//! kafka_cluster = "5L6g3nShT-eMCtK--X86sw"
//! sha256 = "…"
//! ```
//!
//! A file without `kafka_cluster` is of version 1, one with it of version 2. The key has the cluster of
//! any sink: it keeps its name, so that an older version reads the file.
//!
//! The last line is the SHA-256 of all lines before it, so a truncated or changed file is detected.

mod writer;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_relay::{LogError, Opened, Resume};
use walrelay_sink::Disposition;
use walrelay_walsender::{Ancestor, SystemIdentity};

pub(super) use writer::StateWriter;

/// The version of a file with `kafka_cluster`. The version before knows no such key.
const VERSION: i64 = 2;
const HEAD: &str = "# walrelay: how far this relay has come. Written by it; docs/operate/running.md says what for.\n";
/// Begins the line of the checksum.
const CHECKSUM: &str = "sha256 = \"";

/// The content of the state file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// `system_identifier` of the server.
    #[serde(rename = "system_identifier")]
    pub system_id: String,
    /// The server's timeline.
    pub timeline: u32,
    /// The database that the slot decodes.
    pub database: String,
    /// The slot that the relay reads.
    pub slot: String,
    /// The LSN up to which everything is acknowledged. The slot's `confirmed_flush_lsn` is not
    /// beyond it, unless another process moved the slot.
    #[serde(deserialize_with = "lsn")]
    pub confirmed: Lsn,
    /// The id of the sink's cluster that acknowledged the records before `confirmed`, if it has one
    /// and was known.
    #[serde(rename = "kafka_cluster", default)]
    pub sink_cluster: Option<String>,
}

fn lsn<'de, D: Deserializer<'de>>(value: D) -> Result<Lsn, D::Error> {
    String::deserialize(value)?
        .parse()
        .map_err(D::Error::custom)
}

impl Position {
    /// Returns the position as a [`Resume`], for the check of continuity. `server_start`: `None` if
    /// this process does not know it.
    pub fn resume(&self, server_start: Option<String>) -> Resume {
        let confirmed = CommitEnd::from_slot(self.confirmed);
        Resume {
            system_id: self.system_id.clone(),
            timeline: self.timeline,
            server_start,
            confirmed,
            seen: confirmed,
        }
    }

    /// Checks that the slot at this position continues the file, as a start of the relay does. `former`: the server
    /// that the outbox was moved from.
    ///
    /// # Errors
    /// If events may be missing, or the file is of another server.
    pub fn continued_by_slot(
        &self,
        identity: &SystemIdentity,
        ancestors: &[Ancestor],
        confirmed: Lsn,
        former: Option<String>,
    ) -> Result<(), LogError> {
        let opened = Opened {
            former,
            stream: (),
            system_id: identity.system_id.clone(),
            timeline: identity.timeline,
            slot: Some(self.slot.clone()),
            server_start: String::new(),
            ancestors: ancestors.to_vec(),
            flushed: identity.flushed,
            confirmed: CommitEnd::from_slot(confirmed),
            server_timeout: None,
            tables: Vec::new(),
            predecessor: None,
            epoch: 0,
        };
        self.resume(None).continued_by(&opened).map(drop)
    }

    /// Checks that the position in the file `path` is of this slot, and of this database if that is
    /// known.
    ///
    /// # Errors
    /// [`StateFileError::Foreign`].
    pub fn check_owner(
        &self,
        path: &Path,
        slot: &str,
        database: Option<&str>,
    ) -> Result<(), StateFileError> {
        for (what, found, wanted) in [
            ("slot", self.slot.as_str(), Some(slot)),
            ("database", self.database.as_str(), database),
        ] {
            if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
                return Err(StateFileError::Foreign {
                    path: path.to_owned(),
                    what,
                    found: found.to_owned(),
                    wanted: wanted.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn text(&self) -> String {
        // These names may need escapes: the others are numbers and the name of a slot.
        let string = |name: &str| toml::Value::String(name.to_owned());
        let database = string(&self.database);
        let (version, cluster) = match &self.sink_cluster {
            Some(id) => (VERSION, format!("kafka_cluster = {}\n", string(id))),
            None => (VERSION - 1, String::new()),
        };
        with_checksum(format!(
            "{HEAD}version = {version}\nsystem_identifier = \"{}\"\ntimeline = {}\n\
             database = {database}\nslot = \"{}\"\nconfirmed = \"{}\"\n{cluster}",
            self.system_id, self.timeline, self.slot, self.confirmed
        ))
    }

    fn parse(text: &str) -> Result<Self, Unreadable> {
        let content = without_checksum(text).ok_or(Unreadable::Broken)?;
        // The checksum matches, so an unknown field is one of another version.
        let mut table: toml::Table = content.parse().map_err(|_| Unreadable::Broken)?;
        let version = table
            .remove("version")
            .and_then(|version| version.as_integer());
        if !version.is_some_and(|version| (1..=VERSION).contains(&version)) {
            return Err(Unreadable::Version(version));
        }
        table.try_into().map_err(|_| Unreadable::Broken)
    }
}

/// Adds the line of the checksum, by which a truncated or changed text is detected.
pub fn with_checksum(mut text: String) -> String {
    let sum = checksum(&text);
    text.extend([CHECKSUM, &sum, "\"\n"]);
    text
}

/// Returns the lines before that of the checksum; `None` if the text is truncated or was changed.
pub fn without_checksum(text: &str) -> Option<&str> {
    let (content, rest) = text.rsplit_once(CHECKSUM)?;
    let found = rest.strip_suffix("\"\n")?;
    (found == checksum(content)).then_some(content)
}

fn checksum(text: &str) -> String {
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

/// The state file cannot be used. No position beyond the file's was confirmed.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The file exists and cannot be read.
    #[error("the state file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("the state file {} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is truncated, or was changed.
    #[error("the state file {} is cut off, or was changed", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
    },
    /// Another version of walrelay wrote it.
    #[error(
        "the state file {} is of version {}, this walrelay knows version {VERSION}",
        path.display(),
        found.map_or_else(|| "?".to_owned(), |found| found.to_string())
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// What the file has.
        found: Option<i64>,
    },
    /// The file belongs to another relay.
    #[error("the state file {} is of {what} {found}, not {wanted}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// `slot` or `database`.
        what: &'static str,
        /// What the file has.
        found: String,
        /// What the relay is.
        wanted: String,
    },
    /// The records go to another cluster than before.
    #[error(
        "the cluster id of the sink changed from {kept} to {now}: changes committed before \
         {confirmed} were sent to the former cluster, and nothing was confirmed since"
    )]
    OtherCluster {
        /// The id in the file.
        kept: String,
        /// The id of the cluster that acknowledged records.
        now: String,
        /// The position in the file.
        confirmed: Lsn,
    },
}

/// The remedy when the sink has another cluster than before.
pub const OTHER_CLUSTER: &str = "the address now leads to another cluster. If that is not meant, \
                                 correct the servers in [sink]; if it is, run walrelay run \
                                 --accept-gap once: the relay goes on from the slot, and events \
                                 sent before stay in the former cluster";

impl StateFileError {
    /// Tells whether another attempt can succeed, and whose it is to mend.
    pub fn disposition(&self) -> Disposition {
        use io::ErrorKind as Kind;
        match self {
            // A full disk or an unavailable file system may be temporary; a wrong path is not.
            StateFileError::Read { source, .. } | StateFileError::Write { source, .. } => {
                match source.kind() {
                    Kind::NotFound
                    | Kind::PermissionDenied
                    | Kind::NotADirectory
                    | Kind::IsADirectory
                    | Kind::ReadOnlyFilesystem
                    | Kind::InvalidInput
                    | Kind::InvalidFilename => Disposition::Configuration,
                    _ => Disposition::Retryable,
                }
            }
            StateFileError::Broken { .. }
            | StateFileError::Version { .. }
            | StateFileError::Foreign { .. } => Disposition::Configuration,
            StateFileError::OtherCluster { .. } => Disposition::Fatal,
        }
    }

    /// Returns the operating system's error as text, if it caused this one.
    pub fn io(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Some(source.to_string()),
            _ => None,
        }
    }

    /// Returns the remedy for the error.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Read { .. } | Self::Write { .. } => {
                "[source] state_file names a file in a directory that exists, in which the relay's \
                 user may create and rename files"
            }
            Self::Version {
                found: Some(found), ..
            } if *found > VERSION => {
                "a newer walrelay has written it: start that one again. To go back for good, \
                 remove the file: the relay then accepts the slot as it finds it, and cannot tell \
                 whether another client moved or recreated it meanwhile"
            }
            Self::Broken { .. } | Self::Version { .. } => {
                "restore it, or remove it: the relay then accepts the slot as it finds it, and \
                 cannot tell whether another client moved or recreated it meanwhile"
            }
            Self::Foreign { .. } => {
                "give each relay a state file of its own, or remove the file if it is an old one"
            }
            Self::OtherCluster { .. } => OTHER_CLUSTER,
        }
    }
}

/// Reads the position; `None` if there is no such file.
///
/// # Errors
/// As [`StateFileError`] says.
pub fn read(path: &Path) -> Result<Option<Position>, StateFileError> {
    let path = path.to_owned();
    let bytes = match check_ordinary(&path).and_then(|()| fs::read(&path)) {
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

/// Writes the position durably: it is on disk when this returns. After a failure, also of the
/// machine, the file holds either this position or the previous one.
///
/// # Errors
/// [`StateFileError::Write`].
pub(super) fn write(path: &Path, position: &Position) -> Result<(), StateFileError> {
    replace_file(path, &position.text()).map_err(|source| StateFileError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Checks that [`write`] can write the file, by writing another one in its directory. Changes
/// neither the file nor what a relay is writing meanwhile.
///
/// # Errors
/// [`StateFileError::Write`].
pub fn check_writable(path: &Path) -> Result<(), StateFileError> {
    let probe = directory(path).join(format!(".walrelay-check-{}", std::process::id()));
    let written = replace_file(&probe, HEAD);
    // If the rename failed, the text is still in the new file.
    for left in [new_file(&probe), probe] {
        let _ = fs::remove_file(left);
    }
    // Another user may have left a new file, which `write` would have to truncate.
    let new = new_file(path);
    let left = check_ordinary(&new).and_then(|()| OpenOptions::new().write(true).open(new));
    let left = match left {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    written.and(left).map_err(|source| StateFileError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Writes the file durably. After a failure, also of the machine, it has either this text or the
/// previous one.
pub fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let new = new_file(path);
    for path in [path, &new] {
        match check_ordinary(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    drop(file);
    fs::rename(&new, path)?;
    // The rename is durable when the directory is synced.
    File::open(directory(path))?.sync_all()
}

/// Checks that the path leads to a file. Opening a FIFO waits for its other end, which no stop of the
/// relay could end, and a device has no end; a directory fails by itself.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for a FIFO, a socket or a device.
fn check_ordinary(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_dir() {
        return Ok(());
    }
    let what = "it is a FIFO, a socket or a device, not a file";
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// Returns the file that is written before it replaces `path`. It is in the same directory, because
/// a rename is atomic only within a file system.
fn new_file(path: &Path) -> PathBuf {
    let mut new = OsString::from(path);
    new.push(".new");
    new.into()
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests;
