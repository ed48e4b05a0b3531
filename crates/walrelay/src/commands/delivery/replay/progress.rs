//! Shows the progress of a replay on the terminal, and notes it in the replay's file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;
use walrelay_failure::Failure;
use walrelay_lsn::{CommitEnd, Lsn};
use walrelay_observe::wall_clock;
use walrelay_pgoutput::PgTimestamp;
use walrelay_postgres_source::Reading;
use walrelay_relay::{Observer, Progress};

use super::note::{Note, NoteFile};
use crate::commands::assembly::pipelines::RecordCounts;
use crate::commands::terminal::progress_line::ProgressLine;
use crate::commands::terminal::units::percent_bar;

/// The observer of a replay's pipeline.
#[derive(Debug)]
pub(super) struct ReplayObserver {
    file: Option<NoteFile>,
    /// The last position that was noted in the file.
    noted: Lsn,
    begin: Lsn,
    end: Lsn,
    reading: Arc<Reading>,
    sent: Arc<RecordCounts>,
    line: ProgressLine,
    begun: Instant,
}

impl ReplayObserver {
    pub(super) fn new(
        note: &Note,
        file: Option<NoteFile>,
        reading: Arc<Reading>,
        sent: Arc<RecordCounts>,
        line: ProgressLine,
    ) -> Self {
        Self {
            file,
            noted: Lsn::ZERO,
            begin: note.resumes_at(),
            end: note.end,
            reading,
            sent,
            line,
            begun: Instant::now(),
        }
    }

    fn persist_position(&mut self, acknowledged: CommitEnd) {
        let position = acknowledged.lsn();
        if let Some(file) = self.file.as_mut().filter(|_| position > self.noted) {
            // A later write may succeed. A resumed replay sends again what is not noted.
            if let Err(error) = file.acknowledged(position) {
                warn!(%error, "the progress of the replay cannot be noted");
            }
            self.noted = position;
        }
    }

    fn draw(&mut self) {
        let part = part(self.begin, self.reading.position(), self.end);
        self.line
            .draw(|| line(part, self.sent.acknowledged(), self.begun.elapsed()));
    }

    /// Removes the note after a complete replay.
    pub(super) fn finished(self) -> Result<(), Failure> {
        self.file.map_or(Ok(()), NoteFile::remove)
    }

    /// Ends an incomplete run. Notes that everything before `acknowledged` is acknowledged, if that
    /// is known. Returns whether the replay can be resumed.
    pub(super) fn interrupted(mut self, acknowledged: Option<CommitEnd>) -> bool {
        self.line.end();
        if let Some(acknowledged) = acknowledged {
            self.persist_position(acknowledged);
        }
        self.file.is_some()
    }
}

impl Observer for ReplayObserver {
    fn wall_clock(&self) -> PgTimestamp {
        wall_clock()
    }

    fn progress(&mut self, progress: &Progress) {
        self.persist_position(progress.confirmed);
        self.draw();
    }
}

/// Returns the part of the range that was read, from 0 to 1.
fn part(begin: Lsn, position: Lsn, end: Lsn) -> f64 {
    let whole = end.get().saturating_sub(begin.get());
    let read = position.get().saturating_sub(begin.get());
    if whole == 0 {
        1.0
    } else {
        (read as f64 / whole as f64).min(1.0)
    }
}

/// Returns the progress line: bar, number of records, rate and time left.
fn line(part: f64, records: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let left = if part > 0.01 {
        let left = (seconds / part - seconds).round() as u64;
        format!("{}:{:02} left", left / 60, left % 60)
    } else {
        "-:-- left".to_owned()
    };
    format!(
        "{}  {records} records  {:.0}/s  {left}",
        percent_bar(part),
        records as f64 / seconds,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_part_rate_and_time_left() {
        let of = |position| part(Lsn::new(100), Lsn::new(position), Lsn::new(200));
        assert_eq!((of(0), of(150), of(300)), (0.0, 0.5, 1.0));
        assert_eq!(
            (part(Lsn::new(5), Lsn::new(5), Lsn::new(5)), of(100)),
            (1.0, 0.0)
        );
        let half = line(0.5, 9_000, Duration::from_secs(90));
        assert_eq!(
            half,
            "[############............]  50 %  9000 records  100/s  1:30 left"
        );
        assert!(line(0.0, 0, Duration::ZERO).contains("-:-- left"));
    }
}
