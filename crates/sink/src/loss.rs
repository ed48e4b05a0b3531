//! Events that a destination has lost after it had acknowledged them.

use serde::{Deserialize, Serialize};
use walrelay_lsn::Lsn;

use crate::{EventPosition, micros_now};

/// The end of the remedy: what makes a loss no problem any more.
pub const ACCEPT_LOSS: &str = "Then start the relay once with walrelay run --accept-loss";

/// The number of losses that are kept apart. Further ones are one loss of the place [`OTHERS`].
const MAX_LOSSES: usize = 5;
/// The name of all further places.
const OTHERS: &str = "*";

/// Events that a destination had acknowledged and has lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The destination's name for what has lost them: a stream.
    pub place: String,
    /// The topic that all of them had; `None`: they may have several.
    pub topic: Option<String>,
    /// The number of lost entries, as far as the destination's own counts tell; 1 at least.
    pub events: u64,
    /// The first event that may be lost.
    pub from: EventPosition,
    /// The last acknowledged event of the place.
    pub to: EventPosition,
    /// The place has dead letters.
    pub is_of_dead_letters: bool,
    /// When the loss was seen, in milliseconds since 1970.
    pub seen_ms: u64,
}

impl Loss {
    /// Notes a loss that is seen now.
    #[must_use]
    pub fn new(
        place: &str,
        topic: Option<&str>,
        events: u64,
        (from, to): (EventPosition, EventPosition),
        is_of_dead_letters: bool,
    ) -> Self {
        Self {
            place: place.to_owned(),
            topic: topic.map(str::to_owned),
            events: events.max(1),
            from,
            to,
            is_of_dead_letters,
            seen_ms: u64::try_from(micros_now() / 1000).unwrap_or_default(),
        }
    }

    /// Returns the text that names place, number and range.
    #[must_use]
    pub fn text(&self) -> String {
        let Self {
            place,
            events,
            from,
            to,
            ..
        } = self;
        let place = if place == OTHERS {
            "further streams".to_owned()
        } else {
            format!("stream {place:?}")
        };
        format!("{place}: {events} or more entries are gone, of the events from {from} to {to}")
    }

    /// Logs the loss with its remedy. `epoch`: that of the server which the relay reads.
    pub fn log(&self, epoch: u8) {
        tracing::warn!(
            lost = self.text(),
            remedy = self.remedy(epoch),
            "the destination has lost events that it had acknowledged"
        );
    }

    /// Returns the command that sends the events of the range again, and what to do if it cannot.
    ///
    /// `epoch`: that of the server which the relay reads. A replay reads the log of that server, which has no event
    /// of a former epoch.
    #[must_use]
    pub fn remedy(&self, epoch: u8) -> String {
        if self.is_of_dead_letters {
            return "dead letters are gone: the log of the relay has the id of each; remove the causes, then send the \
                    rows: walrelay resend --id ID"
                .to_owned();
        }
        let Some(command) = self.command(epoch) else {
            return "events of the range are in the log of a former server, which a replay does not read: send their rows: walrelay resend --where CONDITION"
                .to_owned();
        };
        format!(
            "{command} sends them again. If it fails with replay-gone, send their rows: walrelay resend --where CONDITION"
        )
    }

    /// Returns the command that sends the events of the range again; `None` if some are of another epoch than
    /// this one.
    fn command(&self, epoch: u8) -> Option<String> {
        if [self.from.epoch, self.to.epoch] != [epoch; 2] {
            return None;
        }
        // The end is exclusive.
        let end = Lsn::new(self.to.lsn.saturating_add(1));
        let from = Lsn::new(self.from.lsn);
        let selected = self.topic.as_ref().filter(|topic| {
            // A shell or the condition would read these in another way.
            let special = |c: char| matches!(c, '\'' | '"' | '\\' | '$' | '`') || c.is_control();
            !topic.contains(special)
        });
        let selected = selected.map(|topic| format!(" --where \"topic = '{topic}'\""));
        Some(format!(
            "walrelay replay --from {from} --to {end}{}",
            selected.unwrap_or_default()
        ))
    }

    /// Adds another loss, whose place may be another one.
    fn merge(&mut self, other: &Self) {
        OTHERS.clone_into(&mut self.place);
        self.topic = None;
        self.events = self.events.saturating_add(other.events);
        self.from = self.from.min(other.from);
        self.to = self.to.max(other.to);
        self.is_of_dead_letters &= other.is_of_dead_letters;
        self.seen_ms = self.seen_ms.max(other.seen_ms);
    }
}

/// The losses that are not accepted yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// The first of them, and all further ones as one. Those that a former process has seen are part of it.
    pub list: Vec<Loss>,
    /// The number of lost events that were seen since the start of the process.
    pub events: u64,
}

impl Losses {
    /// Adds a loss.
    pub(crate) fn add(&mut self, loss: Loss) {
        self.events = self.events.saturating_add(loss.events);
        self.insert(loss);
    }

    /// Adds a loss that a former process has seen, unless it is there.
    pub(crate) fn add_former(&mut self, loss: Loss) {
        if self.list.contains(&loss) {
            return;
        }
        self.insert(loss);
    }

    fn insert(&mut self, loss: Loss) {
        match self.list.get_mut(MAX_LOSSES) {
            Some(others) => others.merge(&loss),
            None => self.list.push(loss),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(place: &str, from: u64, to: u64) -> Loss {
        let range = [from, to].map(|lsn| EventPosition::in_first_epoch(lsn, 2));
        Loss::new(place, Some(place), 3, range.into(), false)
    }

    #[test]
    fn the_remedy_replays_the_range_with_its_last_transaction() {
        let remedy = loss("orders", 0x10, 0x2F).remedy(0);
        let command = "walrelay replay --from 0/10 --to 0/30 --where \"topic = 'orders'\" ";
        assert!(remedy.starts_with(command), "{remedy}");
        // A name that a shell or the condition would read otherwise is left out.
        let remedy = loss("it's", 0x10, 0x2F).remedy(0);
        let command = "walrelay replay --from 0/10 --to 0/30 sends";
        assert!(remedy.starts_with(command), "{remedy}");
    }

    #[test]
    fn the_remedy_of_a_former_epoch_sends_rows_again() {
        let mut loss = loss("orders", 0x10, 0x2F);
        let replays = |loss: &Loss, epoch| {
            let remedy = loss.remedy(epoch);
            let resends = remedy.contains("send their rows: walrelay resend");
            assert!(resends, "{remedy}");
            remedy.contains("walrelay replay")
        };
        assert!(!replays(&loss, 1), "the log of a former server");
        loss.to.epoch = 1;
        assert!(!replays(&loss, 1), "begins in the log of a former server");
        loss.from.epoch = 1;
        assert!(replays(&loss, 1));
        let remedy = loss.remedy(1);
        assert!(remedy.contains("--from 0/10 --to 0/30"), "{remedy}");
    }

    #[test]
    fn further_losses_are_one_whose_range_has_all_of_theirs() {
        let mut losses = Losses::default();
        for number in 0..MAX_LOSSES as u64 + 3 {
            losses.add(loss(&number.to_string(), 50 - number, 60 + number));
        }
        assert_eq!(losses.list.len(), MAX_LOSSES + 1);
        assert_eq!(losses.events, 24);
        let others = &losses.list[MAX_LOSSES];
        assert_eq!((others.from.lsn, others.to.lsn), (43, 67));
        assert_eq!((others.events, &others.topic), (9, &None));
        assert!(others.text().starts_with("further streams: 9 or more"));
    }
}
