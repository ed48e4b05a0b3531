//! What is known of the exchanges on a connection.
//!
//! The server closes the channel when a message is published to an exchange that is missing or may not be
//! written to, and does not say what becomes of the other messages of the channel. So a message is
//! published among others only if its exchange is known to accept messages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_sink_client::pause;

/// The exchanges that are remembered, at most: rows choose them, and there is no end of them.
const MAX_KNOWN: usize = 10_000;
/// The questions without an answer, at most. The server drops those behind a missing exchange.
const MAX_ASKED: usize = 32;

/// The reason why no message to an exchange is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The exchange does not exist.
    Missing,
    /// The user may not write to the exchange.
    Denied,
}

/// The way of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Publish it among others.
    Publish(Arc<str>),
    /// Publish it on its own channel.
    Alone,
    /// It waits until more is known of its exchange.
    Wait,
    /// The exchange accepts no message, and is tried again at this time.
    Fails(Arc<str>, Fault, Instant),
}

#[derive(Debug)]
struct Exchange {
    state: State,
    /// The failures without a success between.
    failures: u32,
}

#[derive(Debug)]
enum State {
    Exists,
    /// The server is asked for the exchange. These messages wait.
    Asked(Vec<u64>),
    /// A message to the exchange may have closed a channel. These messages wait until one is accepted.
    Suspect {
        waiting: VecDeque<u64>,
        /// One is published alone.
        is_tried: bool,
    },
    Fails(Fault, Instant),
}

/// The exchanges that are known on a connection, and the messages that wait until more is known.
#[derive(Debug)]
pub(super) struct Exchanges {
    known: HashMap<Arc<str>, Exchange>,
    /// The exchanges that the server is asked for, in the order of the questions.
    asked: VecDeque<Arc<str>>,
    /// The number of questions that were sent.
    sent: usize,
    /// The first and the longest pause before an exchange is tried again.
    pauses: (Duration, Duration),
}

impl Exchanges {
    /// Knows the default exchange, and the one that was declared.
    pub(super) fn new(pauses: (Duration, Duration), declared: Option<&str>) -> Self {
        let names = [""].into_iter().chain(declared);
        let known = names.map(|name| {
            let exchange = Exchange {
                state: State::Exists,
                failures: 0,
            };
            (name.into(), exchange)
        });
        Self {
            known: known.collect(),
            asked: VecDeque::new(),
            sent: 0,
            pauses,
        }
    }

    /// Returns what to do with a message to an exchange. Keeps a message that waits.
    pub(super) fn way(&mut self, exchange: &str, seq: u64, now: Instant) -> Way {
        if let Some((name, _)) = self.known.get_key_value(exchange) {
            let name = Arc::clone(name);
            return self.way_of_known(name, seq, now);
        }
        self.make_room(now);
        let name: Arc<str> = exchange.into();
        // The server takes line breaks out of the name that is asked for (`strip_cr_lf` of
        // `rabbit_channel.erl`), and not out of the one that is published to.
        let state = if exchange.contains(['\r', '\n']) {
            State::Suspect {
                waiting: VecDeque::new(),
                is_tried: true,
            }
        } else {
            self.asked.push_back(Arc::clone(&name));
            State::Asked(vec![seq])
        };
        let way = match &state {
            State::Asked(_) => Way::Wait,
            _ => Way::Alone,
        };
        let failures = 0;
        self.known.insert(name, Exchange { state, failures });
        way
    }

    fn way_of_known(&mut self, name: Arc<str>, seq: u64, now: Instant) -> Way {
        let Some(exchange) = self.known.get_mut(&name) else {
            return Way::Alone;
        };
        match &mut exchange.state {
            State::Exists => Way::Publish(name),
            State::Asked(waiting) => {
                waiting.push(seq);
                Way::Wait
            }
            State::Suspect { waiting, is_tried } => {
                if std::mem::replace(is_tried, true) {
                    waiting.push_back(seq);
                    return Way::Wait;
                }
                Way::Alone
            }
            State::Fails(fault, again) if now < *again => Way::Fails(name, *fault, *again),
            State::Fails(Fault::Missing, _) => {
                exchange.state = State::Asked(vec![seq]);
                self.asked.push_back(name);
                Way::Wait
            }
            State::Fails(Fault::Denied, _) => {
                exchange.state = State::Suspect {
                    waiting: VecDeque::new(),
                    is_tried: true,
                };
                Way::Alone
            }
        }
    }

    fn make_room(&mut self, now: Instant) {
        if self.known.len() < MAX_KNOWN {
            return;
        }
        self.known.retain(|name, exchange| match &exchange.state {
            State::Exists => name.is_empty(),
            State::Fails(_, again) => now < *again,
            State::Asked(_) | State::Suspect { .. } => true,
        });
    }

    /// Returns the exchanges to ask the server for now.
    pub(super) fn next_questions(&mut self) -> impl Iterator<Item = &str> {
        let from = std::mem::replace(&mut self.sent, self.asked.len().min(MAX_ASKED));
        let sent = self.sent;
        let new = self.asked.range(from.min(sent)..sent);
        new.map(|name| &**name)
    }

    /// Returns true if the server is to be asked for an exchange.
    pub(super) fn has_question(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Returns true if a question has no answer.
    pub(super) fn is_asking(&self) -> bool {
        self.sent > 0
    }

    /// Notes that the first exchange that was asked for exists. Returns the messages that have waited;
    /// `None` if none was asked for.
    pub(super) fn exists(&mut self) -> Option<Vec<u64>> {
        let name = self.answered()?;
        self.accepts(&name)
    }

    /// Notes that the server has closed the channel on which it is asked. Returns the first exchange that
    /// was asked for; the others are asked for again.
    pub(super) fn closed(&mut self) -> Option<Arc<str>> {
        let name = self.answered()?;
        self.sent = 0;
        Some(name)
    }

    fn answered(&mut self) -> Option<Arc<str>> {
        self.sent = self.sent.checked_sub(1)?;
        self.asked.pop_front()
    }

    /// Notes that an exchange accepts messages. Returns the messages that have waited for this.
    pub(super) fn accepts(&mut self, name: &str) -> Option<Vec<u64>> {
        let exchange = self.known.get_mut(name)?;
        exchange.failures = 0;
        let before = std::mem::replace(&mut exchange.state, State::Exists);
        Some(before.into_waiting())
    }

    /// Notes that messages to an exchange may have closed a channel. Returns the one to publish alone.
    pub(super) fn suspect(&mut self, name: &Arc<str>, messages: Vec<u64>) -> Option<u64> {
        let exchange = self.known.entry(Arc::clone(name)).or_insert(Exchange {
            state: State::Exists,
            failures: 0,
        });
        let before = std::mem::replace(&mut exchange.state, State::Exists);
        let was_tried = matches!(before, State::Suspect { is_tried: true, .. });
        let mut waiting: VecDeque<u64> = messages.into();
        waiting.extend(before.into_waiting());
        let next = if was_tried { None } else { waiting.pop_front() };
        exchange.state = State::Suspect {
            waiting,
            is_tried: was_tried || next.is_some(),
        };
        next
    }

    /// Notes that the message that was published alone was refused for itself. Returns another one to
    /// publish alone.
    pub(super) fn tried(&mut self, name: &str) -> Option<u64> {
        let exchange = self.known.get_mut(name)?;
        let State::Suspect { waiting, is_tried } = &mut exchange.state else {
            return None;
        };
        let next = waiting.pop_front();
        *is_tried = next.is_some();
        next
    }

    /// Notes that an exchange accepts no message. Returns the time at which it is tried again, and the
    /// messages that have waited.
    pub(super) fn fails(
        &mut self,
        name: &Arc<str>,
        fault: Fault,
        now: Instant,
    ) -> (Instant, Vec<u64>) {
        let exchange = self.known.entry(Arc::clone(name)).or_insert(Exchange {
            state: State::Exists,
            failures: 0,
        });
        let again = now + pause(self.pauses, exchange.failures);
        exchange.failures = exchange.failures.saturating_add(1);
        let before = std::mem::replace(&mut exchange.state, State::Fails(fault, again));
        (again, before.into_waiting())
    }

    /// Takes all messages that wait.
    pub(super) fn take_waiting(&mut self) -> Vec<u64> {
        let all = self.known.drain();
        all.flat_map(|(_, exchange)| exchange.state.into_waiting())
            .collect()
    }
}

impl State {
    fn into_waiting(self) -> Vec<u64> {
        match self {
            Self::Asked(waiting) => waiting,
            Self::Suspect { waiting, .. } => waiting.into(),
            Self::Exists | Self::Fails(..) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn exchanges() -> Exchanges {
        Exchanges::new((SECOND, SECOND), Some("declared"))
    }

    fn asked(exchanges: &mut Exchanges) -> Vec<String> {
        exchanges.next_questions().map(str::to_owned).collect()
    }

    #[test]
    fn the_server_is_asked_once_for_each_exchange() {
        let mut exchanges = exchanges();
        let now = Instant::now();
        for known in ["", "declared"] {
            assert_eq!(exchanges.way(known, 9, now), Way::Publish(known.into()));
        }
        for (seq, name) in [(0, "a"), (1, "b"), (2, "c"), (3, "a")] {
            assert_eq!(exchanges.way(name, seq, now), Way::Wait);
        }
        assert_eq!(asked(&mut exchanges), ["a", "b", "c"]);
        assert!(asked(&mut exchanges).is_empty() && exchanges.is_asking());
        assert_eq!(exchanges.exists(), Some(vec![0, 3]));
        assert_eq!(exchanges.way("a", 4, now), Way::Publish("a".into()));
        // The server drops the questions behind one that it answers by a close.
        let missing = exchanges.closed().unwrap();
        assert_eq!(&*missing, "b");
        let (again, waiting) = exchanges.fails(&missing, Fault::Missing, now);
        assert_eq!(waiting, [1]);
        let fails = Way::Fails("b".into(), Fault::Missing, again);
        assert_eq!(exchanges.way("b", 1, now), fails);
        assert_eq!(asked(&mut exchanges), ["c"]);
        assert_eq!(exchanges.exists(), Some(vec![2]));
        assert!(!exchanges.is_asking() && exchanges.exists().is_none());
        assert_eq!(exchanges.way("b", 1, again), Way::Wait);
        assert_eq!(asked(&mut exchanges), ["b"]);
        assert_eq!(exchanges.take_waiting(), [1]);
    }

    #[test]
    fn one_message_to_a_suspect_exchange_is_published_alone_at_a_time() {
        let mut exchanges = exchanges();
        let now = Instant::now();
        let name: Arc<str> = "declared".into();
        assert_eq!(exchanges.suspect(&name, vec![1, 2]), Some(1));
        assert_eq!(exchanges.suspect(&name, vec![3]), None, "one is tried");
        assert_eq!(exchanges.way(&name, 4, now), Way::Wait);
        // The first is at fault itself.
        assert_eq!(exchanges.tried(&name), Some(3));
        let (again, waiting) = exchanges.fails(&name, Fault::Denied, now);
        assert_eq!(waiting, [2, 4]);
        assert_eq!(exchanges.way(&name, 3, again), Way::Alone);
        assert_eq!(exchanges.way(&name, 2, again), Way::Wait);
        assert_eq!(exchanges.accepts(&name), Some(vec![2]));
        assert_eq!(exchanges.way(&name, 2, now), Way::Publish(name.clone()));
        // A question would be for another name.
        assert_eq!(exchanges.way("decl\nared", 5, now), Way::Alone);
        assert!(asked(&mut exchanges).is_empty());
    }

    #[test]
    fn the_exchanges_are_bounded() {
        let mut exchanges = exchanges();
        let now = Instant::now();
        for number in 0..3 * MAX_KNOWN as u64 {
            let name = number.to_string();
            assert_eq!(exchanges.way(&name, number, now), Way::Wait);
            assert_eq!(asked(&mut exchanges), [name]);
            exchanges.exists().unwrap();
        }
        assert!(exchanges.known.len() <= MAX_KNOWN);
        assert_eq!(exchanges.way("", 0, now), Way::Publish("".into()));
    }
}
