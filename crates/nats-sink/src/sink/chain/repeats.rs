//! Passes over records that a stream has, one behind the other.

use super::search::{ASKED_AT_ONCE, MAX_BACK};
use super::{Chain, Stop};
use crate::client::exchange::Exchange;
use crate::client::identity::{is_of_snapshot, is_repeat};

impl Chain<'_> {
    /// Reports the first records of the queue that the stream has, if it has them from a known number on
    /// and in their order. Other messages may be between them, less than [`ASKED_AT_ONCE`]. Returns true if
    /// there are any.
    ///
    /// Only the first record of the queue is ever compared. So no record passes an earlier one that the
    /// stream does not have: the earlier one is sent, and those behind it, too.
    pub(super) async fn pass_over(&mut self, exchange: &mut Exchange) -> Result<bool, Stop> {
        self.resume_snapshot(exchange).await?;
        let mut has_found = false;
        while let (Some(first), Some(last)) = (self.next_repeat.take(), self.last)
            && first <= last
        {
            let to = last.min(first.saturating_add(ASKED_AT_ONCE - 1));
            let read = self.read(exchange, to).await?;
            let mut found = Vec::new();
            let mut next = to.saturating_add(1);
            {
                let state = self.shared.state();
                let source = self.source.as_deref();
                let mut heads = state.records.waiting().iter().peekable();
                for number in first..=to {
                    let kept = read.get((to - number) as usize).and_then(Option::as_ref);
                    let head = heads.next_if(|queued| {
                        kept.is_some_and(|kept| {
                            queued.record.with(|record| is_repeat(record, source, kept))
                        })
                    });
                    found.extend(head.map(|queued| queued.seq));
                    if heads.peek().is_none() {
                        // The records that come next may be there.
                        next = number.saturating_add(1);
                        break;
                    }
                }
            }
            if found.is_empty() {
                break;
            }
            has_found = true;
            self.next_repeat = Some(next);
            self.delivered(&found);
            if self.shared.state().records.waiting().is_empty() {
                break;
            }
        }
        Ok(has_found)
    }

    /// Looks for the first row of a snapshot among the last messages, as long as these are rows of a
    /// snapshot: an earlier one may have been interrupted, longer ago than the duplicate window.
    async fn resume_snapshot(&mut self, exchange: &mut Exchange) -> Result<(), Stop> {
        let has_id = {
            let state = self.shared.state();
            let first = state.records.waiting().front();
            first.map(|first| first.record.with(|record| record.event_id.is_some()))
        };
        let (None, Some(has_id), Some(last)) = (&self.source, has_id, self.last) else {
            return Ok(());
        };
        if !has_id || std::mem::replace(&mut self.has_resumed, true) {
            return Ok(());
        }
        let mut to = last;
        while to > last.saturating_sub(MAX_BACK) {
            let read = self.read(exchange, to).await?;
            let is_first = {
                let state = self.shared.state();
                let first = state.records.waiting().front();
                read.iter().position(|kept| {
                    first.zip(kept.as_ref()).is_some_and(|(first, kept)| {
                        first.record.with(|record| is_repeat(record, None, kept))
                    })
                })
            };
            if let Some(back) = is_first {
                self.next_repeat = Some(to - back as u64);
                break;
            }
            if !read.iter().flatten().any(is_of_snapshot) {
                break;
            }
            to -= read.len() as u64;
        }
        Ok(())
    }
}
