//! The note of a replay: its parameters and its progress, in a file, so that it can be resumed.
//!
//! # Invariants
//! - One process at a time runs a replay: it holds the lock of a second file, which the system
//!   releases however the process ends. A lock of the server would not do: a session that the
//!   network has cut off would hold it for hours.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use walrelay_failure::{Exit, Failure};
use walrelay_lsn::Lsn;

/// The parameters and the progress of a replay. It contains no row value but those in `--where`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Note {
    /// The version of the file; 1 if it has none, as the first ones.
    #[serde(default = "first_version")]
    pub(super) version: u32,
    pub(super) id: String,
    /// The slot that the relay reads.
    pub(super) relay_slot: String,
    /// The slot whose copy the replay reads.
    pub(super) slot: String,
    pub(super) system_id: String,
    /// `--from` as given.
    pub(super) from: String,
    /// First position.
    pub(super) start: Lsn,
    /// End of the range.
    pub(super) end: Lsn,
    /// Replays transactions committed at this time or later; microseconds since 2000, as in
    /// Postgres.
    pub(super) after: Option<i64>,
    /// Replays transactions committed before this time, in the same unit.
    pub(super) before: Option<i64>,
    /// The kind of the sink that the replay sends to.
    pub(super) sink: String,
    pub(super) topic_prefix: Option<String>,
    pub(super) to_topic: Option<String>,
    pub(super) selection: Option<String>,
    pub(super) rate: Option<u32>,
    /// Every record before this position is acknowledged.
    pub(super) acknowledged: Option<Lsn>,
}

/// The version of a note that this program reads and writes.
pub(super) const VERSION: u32 = 1;

const fn first_version() -> u32 {
    1
}

/// The version alone: a later one may have other members.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default = "first_version")]
    version: u32,
}

/// The file of a note, and its lock.
#[derive(Debug)]
pub(super) struct NoteFile {
    path: PathBuf,
    note: Note,
    /// The lock is on a second file, as each write replaces the file of the note.
    _lock: File,
}

impl Note {
    /// Returns where the rest of the replay begins.
    pub(super) fn resumes_at(&self) -> Lsn {
        self.acknowledged.unwrap_or(self.start)
    }
}

impl NoteFile {
    /// Creates the file and takes its lock.
    pub(super) fn create(dir: &Path, note: &Note) -> Result<Self, Failure> {
        let path = path(dir, &note.id);
        let file = Self {
            _lock: take_lock(&path, &note.id)?,
            path,
            note: note.clone(),
        };
        let written = file.write();
        written.map_err(|error| not_noted(&file.path, error))?;
        Ok(file)
    }

    /// Reads the note of the replay with this id and takes its lock. Fails if it is of another
    /// relay's slot.
    pub(super) fn open(dir: &Path, id: &str, relay_slot: &str) -> Result<(Note, Self), Failure> {
        let path = path(dir, id);
        let unread = |error| {
            let what = format!(
                "there is no replay {id} to resume: {} cannot be read",
                path.display()
            );
            Failure::new("replay-resume", Exit::Usage, what)
                .caused_by(error)
                .remedy(
                    "name the directory of its file with --state-dir; a replay that ended has none",
                )
        };
        // Taking the lock would create its file: check first that the replay exists.
        fs::metadata(&path).map_err(unread)?;
        let lock = take_lock(&path, id)?;
        // Read under the lock, so that the note is the last one of the run before.
        let text = fs::read(&path).map_err(unread)?;
        let versioned: Versioned =
            serde_json::from_slice(&text).map_err(|error| unusable(id).caused_by(error))?;
        if versioned.version > VERSION {
            let what = format!(
                "the file of replay {id} is of version {}, this walrelay knows version {VERSION}",
                versioned.version
            );
            return Err(Failure::new("replay-resume", Exit::Config, what).remedy(
                "resume it with the newer walrelay, which began it; or begin the replay again",
            ));
        }
        let note: Note =
            serde_json::from_slice(&text).map_err(|error| unusable(id).caused_by(error))?;
        if note.relay_slot != relay_slot || note.id != id {
            let what = format!(
                "replay {id} is one of slot {}, not {relay_slot}",
                note.relay_slot
            );
            return Err(Failure::new("replay-resume", Exit::Usage, what)
                .remedy("name the configuration of that slot with --config"));
        }
        let file = Self {
            path,
            note: note.clone(),
            _lock: lock,
        };
        Ok((note, file))
    }

    /// Notes that every record before this position is acknowledged. It is called with each status
    /// update: every 50 ms while there is progress.
    ///
    /// The note survives the end of the process. The file is not synchronised to the disk, so after
    /// a loss of power it may be older, or unusable.
    pub(super) fn acknowledged(&mut self, position: Lsn) -> io::Result<()> {
        self.note.acknowledged = Some(position);
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&self.note)?;
        let new = self.path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(&new, &self.path)
    }

    /// Removes the files after the end of the replay.
    pub(super) fn remove(self) -> Result<(), Failure> {
        let removed = fs::remove_file(&self.path);
        // The lock's file goes last: a process that opened it before its removal finds no note.
        removed
            .and_then(|()| fs::remove_file(lock_path(&self.path)))
            .map_err(|error| not_noted(&self.path, error))
    }
}

fn not_noted(path: &Path, error: io::Error) -> Failure {
    let what = format!(
        "the progress of the replay cannot be noted in {}",
        path.display()
    );
    Failure::new("replay-state", Exit::Unavailable, what)
        .caused_by(error)
        .remedy("name a directory that can be written to with --state-dir")
}

fn lock_path(note: &Path) -> PathBuf {
    note.with_extension("lock")
}

/// Takes the lock of the replay. It is held for as long as the file is open.
fn take_lock(note: &Path, id: &str) -> Result<File, Failure> {
    let path = lock_path(note);
    let opened = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let file = opened.map_err(|error| not_noted(note, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let what = format!("replay {id} is still running: another process has its lock");
            Err(
                Failure::new("replay-running", Exit::Unavailable, what).remedy(format!(
                    "wait for its end, or stop it; fuser {} names its process",
                    path.display()
                )),
            )
        }
        Err(TryLockError::Error(error)) => Err(not_noted(note, error)),
    }
}

fn path(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("walrelay-replay-{id}.json"))
}

/// Returns the failure that a note's file has a content that no replay writes.
pub(super) fn unusable(id: &str) -> Failure {
    let what = format!("the file of replay {id} cannot be used");
    Failure::new("replay-resume", Exit::Config, what)
        .remedy("remove it, and begin the replay again")
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::{PATIENCE, eventually_some};

    use super::*;

    fn note() -> Note {
        Note {
            version: VERSION,
            id: "0123abcd".to_owned(),
            relay_slot: "walrelay".to_owned(),
            slot: "walrelay_bookmark_may".to_owned(),
            system_id: "7".to_owned(),
            from: "bookmark may".to_owned(),
            start: Lsn::new(0x10),
            end: Lsn::new(0x20),
            after: None,
            before: Some(1),
            sink: "kafka".to_owned(),
            topic_prefix: Some("again.".to_owned()),
            to_topic: None,
            selection: Some("type = 'A'".to_owned()),
            rate: Some(100),
            acknowledged: None,
        }
    }

    #[test]
    fn it_is_read_as_it_was_written_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = NoteFile::create(dir.path(), &note()).unwrap();
        file.acknowledged(Lsn::new(0x18)).unwrap();
        let second = NoteFile::open(dir.path(), "0123abcd", "walrelay").unwrap_err();
        assert_eq!(second.id, "replay-running");
        drop(file);
        // A process that another test starts holds the lock until it runs its own program.
        let open = |slot: &str| {
            eventually_some(PATIENCE, || {
                let opened = NoteFile::open(dir.path(), "0123abcd", slot);
                let locked = matches!(&opened, Err(error) if error.id == "replay-running");
                (!locked).then_some(opened)
            })
        };
        let other = open("other").unwrap_err();
        assert!(other.what.contains("one of slot walrelay"), "{other}");
        let (read, file) = open("walrelay").unwrap();
        let acknowledged = Some(Lsn::new(0x18));
        assert_eq!(
            read,
            Note {
                acknowledged,
                ..note()
            }
        );
        file.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let gone = NoteFile::open(dir.path(), "0123abcd", "walrelay").unwrap_err();
        assert_eq!(gone.id, "replay-resume");
        // As walrelay 0.1 wrote it, without a version.
        let first = include_str!("note-0.1.json");
        fs::write(path(dir.path(), "0123abcd"), first).unwrap();
        let (read, file) = open("walrelay").unwrap();
        assert_eq!(
            read,
            Note {
                acknowledged,
                ..note()
            }
        );
        drop(file);
        let newer = "{\"version\": 2, \"more\": true}";
        fs::write(path(dir.path(), "0123abcd"), newer).unwrap();
        let newer = open("walrelay").unwrap_err();
        assert_eq!((newer.id, newer.exit), ("replay-resume", Exit::Config));
        assert!(newer.what.contains("version 2"), "{newer}");
        fs::write(path(dir.path(), "0123abcd"), "{}").unwrap();
        let torn = NoteFile::open(dir.path(), "0123abcd", "walrelay").unwrap_err();
        assert_eq!(torn.exit, Exit::Config);
    }
}
