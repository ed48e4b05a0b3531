//! The promises, see `main.rs`.

use crate::database::{Event, Mark, Numbers, Snapshot, Version};
use crate::machine::commit_of;
use crate::system::{Model, System, Transaction};

impl System {
    /// Returns true if a relay has sent exactly this event, or its dead letter is resolved and was not written
    /// once more.
    pub(crate) fn is_evident(&self, relay: usize, event: Event) -> bool {
        let is_open = self.relays[relay].letters.is_open(event);
        self.was_sent(relay, event) || !is_open && self.was_evident(relay, event)
    }

    /// Returns true if a relay has sent exactly this event, or its dead letter has been resolved.
    pub(crate) fn was_evident(&self, relay: usize, event: Event) -> bool {
        let resolved = self.relays[relay].letters.resolved;
        self.was_sent(relay, event) || resolved & 1 << event.index() != 0
    }

    fn was_sent(&self, relay: usize, event: Event) -> bool {
        let relay = &self.relays[relay];
        let sent = |(number, transaction): (usize, &Transaction)| {
            (0..2).any(|at| {
                let is_event = transaction.rows[at].is_some_and(|row| row.event == event);
                is_event && relay.acked & 1 << (2 * number + at) != 0
            })
        };
        self.log.iter().enumerate().any(sent)
    }

    /// Checks that a stream leaves out no insert that was not acknowledged, unless the user accepted it.
    pub(crate) fn check_start(&self, number: usize) -> Result<(), String> {
        let relay = &self.relays[number];
        let done = relay.acked | relay.diverted;
        for at in 0..self.log.len() {
            let is_accepted = commit_of(at) < relay.accepted;
            let carried = u16::from(self.log[at].carried[number]) << (2 * at);
            if commit_of(at) < relay.slot && !is_accepted && carried & !done != 0 {
                return Err(format!(
                    "E4: transaction {at} is passed over, and no gap was accepted"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the account has each acknowledged insert at most once, and nothing else.
    pub(crate) fn check_counted(&self, number: usize, model: &Model) -> Result<(), String> {
        let relay = &self.relays[number];
        let mut sums = vec![Numbers::default()];
        for (at, transaction) in self.log.iter().enumerate() {
            for (index, row) in transaction.rows.iter().enumerate() {
                let bit = 1 << (2 * at + index);
                if let Some(row) = row.filter(|_| (relay.acked | relay.diverted) & bit != 0) {
                    let with = sums.iter().map(|sum| {
                        let mut sum = *sum;
                        sum += model.numbers(row.event);
                        sum
                    });
                    let with: Vec<Numbers> = with.collect();
                    sums.extend(with);
                }
            }
        }
        if sums.contains(&relay.added) {
            return Ok(());
        }
        let rows = relay.added.rows;
        Err(format!(
            "E2: {rows} rows are counted, which are not acknowledged inserts, each once"
        ))
    }

    /// Checks a state in which nothing is left to do: unless another client changed something, all rows can
    /// be pruned.
    pub(crate) fn check_end(&self, model: &Model) -> Result<(), String> {
        let scenario = &model.scenario;
        let budgets = (self.changes, self.ddl, self.moves);
        if budgets != (scenario.changes.1, scenario.ddl, scenario.moves) {
            return Ok(());
        }
        for relay in &self.relays {
            if relay.slot != self.end() {
                return Err(format!(
                    "E3: the slot is at {}, not at {}",
                    relay.slot,
                    self.end()
                ));
            }
        }
        let mut last = self.clone();
        if scenario.marks {
            // Without `mark_dead` the rows of dead letters have no mark.
            let stays_unmarked =
                |row: &Version| !scenario.marks_dead && self.relays[0].letters.is_known(row.event);
            last.rows
                .retain(|row| row.mark != Mark::Sent && !stays_unmarked(row));
        } else {
            // The relay of a dead letter settles it. Then all accounts agree.
            for own in [0, self.relays.len() - 1, 0] {
                let seen = Snapshot::take(&last, own as u8);
                last.prune(seen, model)?;
            }
        }
        if last.rows.is_empty() {
            return Ok(());
        }
        Err(format!(
            "E3: {} rows that were sent stay for ever",
            last.rows.len()
        ))
    }
}
