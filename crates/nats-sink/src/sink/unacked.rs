//! The messages of a connection that are not acknowledged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::sequences::Floor;

/// The copies of a message whose answers are awaited. An answer to an older copy is ignored.
const MAX_COPIES: usize = 4;

/// The subject of the answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The acknowledgement of the record with this sequence number.
    Ack(u64),
    /// The streams that have the subject of the record with this sequence number.
    Names(u64),
    /// The message that its stream has under the id of the record with this sequence number.
    Kept(u64),
}

/// The reason for a question about a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Its acknowledgement is overdue: which streams have its subject? The acknowledgement may still
    /// come.
    Overdue,
    /// Nobody is subscribed to its subject: which streams have it? The answer decides.
    Nobody,
    /// Its stream has its id: of which message? The answer decides.
    Duplicate,
}

/// A record that was published and is not acknowledged.
#[derive(Debug)]
struct Unacked {
    /// When the last copy was sent.
    sent: Instant,
    /// When it is sent again.
    expires: Instant,
    /// The number of copies that were sent.
    copies: u32,
    /// The tokens of its copies, in the order in which they were sent.
    tokens: Vec<u64>,
    /// The token of the last question about it.
    question: Option<u64>,
    /// The question whose answer decides what becomes of it.
    asked: Option<Question>,
    /// What its number must be above, as of the first copy: any of them may be the one that is stored.
    floor: Option<Floor>,
}

/// The requests of a connection by their tokens, the last parts of the subjects of their answers.
///
/// A record may have several requests: copies of its message, and a question about its subject. With
/// the answer that decides, all of them are forgotten, so a later answer changes nothing.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    last_token: u64,
    requests: HashMap<u64, Awaited>,
    records: BTreeMap<u64, Unacked>,
    expiries: BTreeSet<(Instant, u64)>,
}

impl InFlight {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds a copy of a record, which is sent now. Returns its token. The time after which it is sent
    /// again doubles with each copy, up to eight times `ack`.
    pub(super) fn publish(
        &mut self,
        seq: u64,
        now: Instant,
        ack: Duration,
        floor: Option<Floor>,
    ) -> u64 {
        self.last_token += 1;
        let token = self.last_token;
        let record = self.records.entry(seq).or_insert_with(|| Unacked {
            sent: now,
            expires: now,
            copies: 0,
            tokens: Vec::new(),
            question: None,
            asked: None,
            floor,
        });
        self.expiries.remove(&(record.expires, seq));
        record.sent = now;
        record.expires = now + ack.saturating_mul(1 << record.copies.min(3));
        record.copies = record.copies.saturating_add(1);
        record.tokens.push(token);
        self.expiries.insert((record.expires, seq));
        self.requests.insert(token, Awaited::Ack(seq));
        if record.tokens.len() > MAX_COPIES {
            self.requests.remove(&record.tokens.remove(0));
        }
        token
    }

    /// Returns what the number of a record in flight must be above.
    pub(super) fn floor(&self, seq: u64) -> Option<Floor> {
        self.records.get(&seq)?.floor
    }

    /// Adds a question about a record. Returns its token; `None` if the record is not in flight.
    pub(super) fn ask(
        &mut self,
        seq: u64,
        question: Question,
        now: Instant,
        ack: Duration,
    ) -> Option<u64> {
        let record = self.records.get_mut(&seq)?;
        self.last_token += 1;
        let token = self.last_token;
        if let Some(earlier) = record.question.replace(token) {
            self.requests.remove(&earlier);
        }
        if question != Question::Overdue {
            record.asked = Some(question);
            self.expiries.remove(&(record.expires, seq));
            record.expires = now + ack;
            self.expiries.insert((record.expires, seq));
        }
        let awaited = match question {
            Question::Overdue | Question::Nobody => Awaited::Names(seq),
            Question::Duplicate => Awaited::Kept(seq),
        };
        self.requests.insert(token, awaited);
        Some(token)
    }

    /// Removes a request that is answered.
    pub(super) fn answered(&mut self, token: u64) -> Option<Awaited> {
        self.requests.remove(&token)
    }

    /// Awaits another answer to a request whose answer meant nothing.
    pub(super) fn await_again(&mut self, token: u64, awaited: Awaited) {
        self.requests.insert(token, awaited);
    }

    /// Returns the question whose answer decides what becomes of a record.
    pub(super) fn question(&self, seq: u64) -> Option<Question> {
        self.records.get(&seq)?.asked
    }

    /// Removes a record with all its requests. Returns when its last copy was sent, and whether it was
    /// sent more than once; `None` if it is not in flight.
    pub(super) fn remove(&mut self, seq: u64) -> Option<(Instant, bool)> {
        let record = self.records.remove(&seq)?;
        self.expiries.remove(&(record.expires, seq));
        for token in record.tokens.into_iter().chain(record.question) {
            self.requests.remove(&token);
        }
        Some((record.sent, record.copies > 1))
    }

    /// Returns the records that wait for the answer to this question.
    pub(super) fn asked(&self, question: Question) -> Vec<u64> {
        let records = self.records.iter();
        let asked = records.filter(|(_, record)| record.asked == Some(question));
        asked.map(|(seq, _)| *seq).collect()
    }

    /// Returns when the next record is to be sent again.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Returns a record that is to be sent again at `now`.
    pub(super) fn expired(&self, now: Instant) -> Option<u64> {
        let (at, seq) = self.expiries.first()?;
        (*at <= now).then_some(*seq)
    }

    /// Removes all: the connection is closed.
    pub(super) fn take_all(&mut self) -> Vec<u64> {
        std::mem::take(self).records.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: Duration = Duration::from_secs(1);

    #[test]
    fn each_copy_is_awaited_longer_and_the_first_decisive_answer_forgets_all() {
        let mut in_flight = InFlight::default();
        let now = Instant::now();
        let first = in_flight.publish(7, now, ACK, None);
        assert_eq!(in_flight.expired(now), None);
        assert_eq!(in_flight.next_expiry(), Some(now + ACK));
        assert_eq!(in_flight.expired(now + ACK), Some(7));
        let second = in_flight.publish(7, now + ACK, ACK, None);
        assert_eq!(in_flight.next_expiry(), Some(now + 3 * ACK));
        let question = in_flight
            .ask(7, Question::Overdue, now, ACK)
            .expect("in flight");
        assert_eq!(in_flight.answered(first), Some(Awaited::Ack(7)));
        in_flight.await_again(first, Awaited::Ack(7));
        assert_eq!(in_flight.remove(7), Some((now + ACK, true)));
        for token in [first, second, question] {
            assert_eq!(in_flight.answered(token), None);
        }
        assert_eq!(in_flight.remove(7), None);
        assert_eq!((in_flight.len(), in_flight.next_expiry()), (0, None));
        assert!(in_flight.requests.is_empty());
    }

    #[test]
    fn copies_beyond_a_few_are_forgotten() {
        let mut in_flight = InFlight::default();
        let now = Instant::now();
        let first = in_flight.publish(1, now, ACK, None);
        for _ in 0..20 {
            in_flight.ask(1, Question::Overdue, now, ACK);
            in_flight.publish(1, now, ACK, None);
        }
        assert_eq!(in_flight.next_expiry(), Some(now + 8 * ACK));
        assert_eq!(in_flight.answered(first), None);
        assert_eq!(in_flight.requests.len(), MAX_COPIES + 1);
        assert_eq!(in_flight.take_all(), [1]);
    }
}
