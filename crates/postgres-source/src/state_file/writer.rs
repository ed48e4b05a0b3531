//! [`StateWriter`]: writes the state file of a running relay, without delaying the stream.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::task::spawn_blocking;
use tracing::warn;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_sink::SinkStats;

use super::{Position, StateFileError, read, write};

type Written = Result<(), StateFileError>;

/// Writes the state file in blocking threads. Returns only positions that are on disk.
#[derive(Debug)]
pub(crate) struct StateWriter {
    path: PathBuf,
    /// The position that is known to be on disk.
    kept: Option<Position>,
    /// The position that is being written.
    writing: Option<(Position, oneshot::Receiver<Written>)>,
    /// The figures of the sink, which know its cluster.
    sink: Option<Arc<SinkStats>>,
    /// Another cluster than that in the file may be gone on with.
    accepts_cluster: bool,
}

impl StateWriter {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            kept: None,
            writing: None,
            sink: None,
            accepts_cluster: false,
        }
    }

    /// Notes the sink's cluster, and refuses another one unless `accepts` is set.
    pub(crate) fn with_sink(mut self, sink: Arc<SinkStats>, accepts: bool) -> Self {
        self.sink = Some(sink);
        self.accepts_cluster = accepts;
        self
    }

    /// Returns the position that is known to be on disk.
    pub(crate) fn kept(&self) -> Option<&Position> {
        self.kept.as_ref()
    }

    /// Forgets the position on disk, so that the next one replaces it even if it is lower.
    pub(crate) fn forget(&mut self) {
        self.kept = None;
    }

    /// Reads the file, which another relay may have written. Returns whether its position is ahead
    /// of the known one. A lower position, or a missing file, changes nothing.
    pub(crate) async fn load(&mut self) -> Result<bool, StateFileError> {
        if let Some((position, written)) = self.writing.take()
            // The last stream started this write. If it failed, the file is read below.
            && matches!(written.await, Ok(Ok(())))
        {
            self.kept = Some(position);
        }
        let path = self.path.clone();
        let Some(found) = blocking(&self.path, move || read(&path)).await? else {
            return Ok(false);
        };
        let ahead = self.kept.as_ref().is_none_or(|kept| {
            kept.system_id != found.system_id
                || (found.timeline, found.confirmed) > (kept.timeline, kept.confirmed)
        });
        if ahead {
            self.kept = Some(found);
        }
        Ok(ahead)
    }

    /// Checks that the file belongs to this slot and database.
    pub(crate) fn check_owner(&self, slot: &str, database: &str) -> Result<(), StateFileError> {
        match &self.kept {
            Some(kept) => kept.check_owner(&self.path, slot, Some(database)),
            None => Ok(()),
        }
    }

    /// Writes a position and waits until it is on disk.
    pub(crate) async fn set(&mut self, position: Position) -> Result<(), StateFileError> {
        if let Some((_, written)) = self.writing.take() {
            // The last stream started this write. Its result does not matter, because the file is
            // written again.
            let _ = written.await;
        }
        let (path, to_write) = (self.path.clone(), position.clone());
        blocking(&self.path, move || write(&path, &to_write)).await?;
        self.kept = Some(position);
        Ok(())
    }

    /// Sets the timeline of the positions to write next. It changes if a standby that served the
    /// stream was promoted.
    pub(crate) fn set_timeline(&mut self, timeline: u32) {
        if let Some(kept) = &mut self.kept {
            kept.timeline = timeline;
        }
    }

    /// Returns the id of the cluster to write: that of the sink, or else that of the file.
    ///
    /// # Errors
    /// [`StateFileError::OtherCluster`].
    fn cluster(&self, kept: &Position) -> Result<Option<String>, StateFileError> {
        let now = self.sink.as_ref().and_then(|sink| sink.cluster_id());
        match (&kept.sink_cluster, now) {
            (Some(before), Some(now)) if *before != now && !self.accepts_cluster => {
                Err(StateFileError::OtherCluster {
                    kept: before.clone(),
                    now,
                    confirmed: kept.confirmed,
                })
            }
            (before, now) => Ok(now.or_else(|| before.clone())),
        }
    }

    /// Starts to write `confirmed`, unless a write is running. Returns the position that is on
    /// disk, at most `confirmed`.
    pub(crate) fn persist_position(
        &mut self,
        confirmed: CommitEnd,
    ) -> Result<CommitEnd, StateFileError> {
        self.finish_write()?;
        let Some(kept) = &self.kept else {
            // Nothing is on disk, so nothing may be confirmed. (Every stream starts with `set`.)
            return Ok(CommitEnd::from_slot(Lsn::ZERO));
        };
        let sink_cluster = self.cluster(kept)?;
        let reached = CommitEnd::from_slot(kept.confirmed);
        if confirmed <= reached {
            return Ok(confirmed);
        }
        if self.writing.is_none() {
            let position = Position {
                confirmed: confirmed.lsn(),
                sink_cluster,
                ..kept.clone()
            };
            let (done, written) = oneshot::channel();
            let (path, to_write) = (self.path.clone(), position.clone());
            spawn_blocking(move || {
                // The receiver may be gone.
                let _ = done.send(write_if_ahead(&path, &to_write));
            });
            self.writing = Some((position, written));
        }
        Ok(reached)
    }

    /// Takes the result of the running write, if it has ended.
    fn finish_write(&mut self) -> Result<(), StateFileError> {
        let Some((position, mut written)) = self.writing.take() else {
            return Ok(());
        };
        match written.try_recv() {
            Ok(Ok(())) => {
                let now = self.sink.as_ref().and_then(|sink| sink.cluster_id());
                // The file has the cluster that was accepted, so no other one is.
                self.accepts_cluster &= now.is_none() || now != position.sink_cluster;
                let before = self
                    .kept
                    .as_ref()
                    .and_then(|kept| kept.sink_cluster.as_ref());
                if let (Some(before), Some(now)) = (before, &position.sink_cluster)
                    && before != now
                {
                    warn!(
                        "accepted by --accept-gap: the cluster id of the sink changed from {before} to {now}"
                    );
                }
                self.kept = Some(position);
            }
            Ok(Err(error)) => return Err(error),
            Err(TryRecvError::Empty) => self.writing = Some((position, written)),
            Err(TryRecvError::Closed) => return Err(panicked(&self.path)),
        }
        Ok(())
    }
}

/// Writes the position, unless the file's position is equal or higher. A higher one shows that
/// another relay has the slot, which this relay has not noticed yet.
fn write_if_ahead(path: &Path, position: &Position) -> Written {
    let covers = |found: &Position| {
        found.system_id == position.system_id
            && found.timeline >= position.timeline
            && found.confirmed >= position.confirmed
    };
    match read(path) {
        Ok(Some(found)) if covers(&found) => Ok(()),
        // A file that cannot be read is replaced, like a missing one.
        _ => write(path, position),
    }
}

async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, StateFileError> + Send + 'static,
) -> Result<T, StateFileError> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(panicked(path)))
}

fn panicked(path: &Path) -> StateFileError {
    StateFileError::Write {
        path: path.to_owned(),
        source: std::io::Error::other("the thread that writes it panicked"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;
    use walrelay_testkit::PATIENCE;

    use super::*;

    fn position(confirmed: u64) -> Position {
        Position {
            system_id: "7".into(),
            timeline: 1,
            database: "app".into(),
            slot: "s".into(),
            confirmed: Lsn::new(confirmed),
            sink_cluster: None,
        }
    }

    fn at(lsn: u64) -> CommitEnd {
        CommitEnd::from_slot(Lsn::new(lsn))
    }

    fn run(test: impl AsyncFnOnce(TempDir)) {
        let dir = TempDir::with_prefix("walrelay-writer-").unwrap();
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(test(dir));
    }

    /// Notes `upto` until the writer reports it as written.
    async fn note_until_written(writer: &mut StateWriter, path: &Path, upto: CommitEnd) {
        tokio::time::timeout(PATIENCE, async {
            loop {
                let reached = writer.persist_position(upto).unwrap();
                let file = read(path).unwrap().unwrap();
                assert!(
                    reached.lsn() <= file.confirmed,
                    "reported before it was written"
                );
                if reached == upto {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .expect("the position is written in time");
    }

    #[test]
    fn nothing_is_reported_that_the_file_does_not_hold() {
        run(async |dir| {
            let path = dir.path().join("state");
            let mut writer = StateWriter::new(path.clone());
            writer.load().await.unwrap();
            assert_eq!(
                writer.persist_position(at(5)).unwrap(),
                at(0),
                "before anything is set"
            );
            writer.set(position(10)).await.unwrap();
            assert_eq!(writer.persist_position(at(9)).unwrap(), at(9));
            assert_eq!(
                writer.persist_position(at(11)).unwrap(),
                at(10),
                "not at once"
            );
            for upto in [11, 12, 40] {
                note_until_written(&mut writer, &path, at(upto)).await;
            }
            let mut again = StateWriter::new(path);
            again.load().await.unwrap();
            assert_eq!(again.kept(), Some(&position(40)));
        });
    }

    /// Two relays that stand by for each other share one file.
    #[test]
    fn a_file_that_another_relay_has_written_is_read_again_and_not_set_back() {
        run(async |dir| {
            let path = dir.path().join("state");
            let mut writer = StateWriter::new(path.clone());
            writer.set(position(10)).await.unwrap();
            assert!(
                !writer.load().await.unwrap(),
                "the file has the known position"
            );
            writer.persist_position(at(11)).unwrap();
            assert!(!writer.load().await.unwrap(), "this relay wrote the file");
            write(&path, &position(50)).unwrap();
            // This relay has not noticed yet that it lost the slot.
            note_until_written(&mut writer, &path, at(20)).await;
            assert_eq!(read(&path).unwrap(), Some(position(50)));
            assert!(writer.load().await.unwrap());
            assert_eq!(writer.kept(), Some(&position(50)));
            // A missing file, or one with a lower position, was not written by a later relay.
            std::fs::remove_file(&path).unwrap();
            assert!(!writer.load().await.unwrap());
            write(&path, &position(5)).unwrap();
            assert!(!writer.load().await.unwrap());
            assert_eq!(writer.kept(), Some(&position(50)));
            let promoted = Position {
                timeline: 2,
                ..position(40)
            };
            write(&path, &promoted).unwrap();
            assert!(writer.load().await.unwrap(), "another timeline");
        });
    }

    #[test]
    fn an_unchanged_position_is_not_written() {
        run(async |dir| {
            let path = dir.path().join("state");
            let mut writer = StateWriter::new(path.clone());
            writer.set(position(10)).await.unwrap();
            std::fs::remove_file(&path).unwrap();
            for _ in 0..3 {
                assert_eq!(writer.persist_position(at(10)).unwrap(), at(10));
            }
            assert!(writer.writing.is_none() && !path.exists());
        });
    }

    #[test]
    fn a_failed_write_is_not_reported_as_written() {
        run(async |dir| {
            let inside = dir.path().join("inside");
            std::fs::create_dir(&inside).unwrap();
            let mut writer = StateWriter::new(inside.join("state"));
            writer.set(position(10)).await.unwrap();
            std::fs::remove_dir_all(&inside).unwrap();
            let failing = async {
                loop {
                    match writer.persist_position(at(20)) {
                        Ok(reached) => assert_eq!(reached, at(10)),
                        Err(error) => return error,
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let error = tokio::time::timeout(PATIENCE, failing).await;
            let error = error.expect("the write fails in time");
            assert!(matches!(error, StateFileError::Write { .. }), "{error}");
            assert_eq!(writer.kept(), Some(&position(10)));
            assert!(writer.set(position(20)).await.is_err());
        });
    }

    #[test]
    fn the_file_of_another_slot_or_database_is_refused() {
        run(async |dir| {
            let mut writer = StateWriter::new(dir.path().join("state"));
            assert!(writer.check_owner("s", "app").is_ok(), "there is none");
            writer.set(position(10)).await.unwrap();
            assert!(writer.check_owner("s", "app").is_ok());
            for (slot, database, word) in [("t", "app", "slot s"), ("s", "b", "database app")] {
                let error = writer.check_owner(slot, database).unwrap_err();
                assert!(error.to_string().contains(word), "{error}");
            }
        });
    }

    #[test]
    fn another_kafka_cluster_confirms_nothing_unless_it_is_accepted() {
        run(async |dir| {
            let path = dir.path().join("state");
            let sink: Arc<SinkStats> = Arc::default();
            let writer =
                |accepts| StateWriter::new(path.clone()).with_sink(Arc::clone(&sink), accepts);
            let mut first = writer(false);
            first.set(position(10)).await.unwrap();
            // Before a record is acknowledged, the position may follow an idle server.
            note_until_written(&mut first, &path, at(11)).await;
            assert_eq!(read(&path).unwrap(), Some(position(11)));
            sink.set_cluster_id("one");
            note_until_written(&mut first, &path, at(12)).await;
            let of = |cluster: &str, confirmed| Position {
                sink_cluster: Some(cluster.to_owned()),
                ..position(confirmed)
            };
            assert_eq!(read(&path).unwrap(), Some(of("one", 12)));

            sink.set_cluster_id("two");
            let mut second = writer(false);
            second.load().await.unwrap();
            for refused in [
                first.persist_position(at(13)),
                second.persist_position(at(12)),
                second.persist_position(at(13)),
            ] {
                let error = refused.unwrap_err();
                assert!(
                    matches!(error, StateFileError::OtherCluster { .. }),
                    "{error}"
                );
                for word in ["from one to two", "0/C"] {
                    assert!(error.to_string().contains(word), "{error}");
                }
            }
            assert_eq!(read(&path).unwrap(), Some(of("one", 12)));

            let mut third = writer(true);
            third.load().await.unwrap();
            note_until_written(&mut third, &path, at(13)).await;
            assert_eq!(read(&path).unwrap(), Some(of("two", 13)));
            sink.set_cluster_id("one");
            assert!(
                third.persist_position(at(14)).is_err(),
                "only one was accepted"
            );
        });
    }
}
