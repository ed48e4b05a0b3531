//! The readers of the slot that were seen while this process did not read it.

use walrelay_relay::Predecessor;

use crate::postgres::catalog::SlotReader;

/// The processes of the server that read the slot since this process had it, as far as looks have shown them.
///
/// A process counts as another relay if it is a walsender with the `application_name` of this one: relays that
/// stand by for each other share a configuration, or at least `application_name` in `[source] url`
/// (docs/adr/0019-a-slot-that-changes-hands.md). Every other reader is a stranger, that consumes events and does
/// not carry them to Kafka: where one was seen, nobody vouches for what the slot has moved over.
#[derive(Debug)]
pub(super) struct Readers {
    application_name: String,
    /// The walsender of this process' last stream. It may outlive the connection.
    own: Option<i64>,
    /// Who was seen last.
    last: Option<i64>,
    relay: Option<Predecessor>,
    stranger: bool,
}

impl Readers {
    /// Nobody was seen. `application_name` is that of this process' sessions.
    pub(super) fn new(application_name: String) -> Self {
        Self {
            application_name,
            own: None,
            last: None,
            relay: None,
            stranger: false,
        }
    }

    /// This process streams, by this walsender: what was seen before is over.
    pub(super) fn streaming(&mut self, walsender: i32) {
        *self = Self::new(std::mem::take(&mut self.application_name));
        self.own = Some(i64::from(walsender));
    }

    /// A look has shown this reader. Whether the look before showed another one, or none.
    pub(super) fn saw(&mut self, reader: &SlotReader) -> bool {
        let new = self.last.replace(reader.pid) != Some(reader.pid);
        if !self.is_own(reader.pid) {
            match &reader.application_name {
                Some(name) if *name == self.application_name => {
                    self.relay = Some(Predecessor::Relay {
                        pid: reader.pid,
                        application_name: name.clone(),
                    });
                }
                _ => self.stranger = true,
            }
        }
        new
    }

    /// Whether that is the walsender of this process' last stream, or of the one it has.
    pub(super) fn is_own(&self, pid: i64) -> bool {
        self.own == Some(pid)
    }

    /// The relay that was seen last, if nobody but relays was seen.
    pub(super) fn predecessor(&self) -> Option<Predecessor> {
        self.relay.clone().filter(|_| !self.stranger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(pid: i64, name: Option<&str>) -> SlotReader {
        SlotReader {
            pid,
            application_name: name.map(str::to_owned),
        }
    }

    fn relay(pid: i64) -> Predecessor {
        Predecessor::Relay {
            pid,
            application_name: "walrelay".to_owned(),
        }
    }

    #[test]
    fn another_relay_is_a_predecessor_and_an_own_walsender_is_not() {
        let mut readers = Readers::new("walrelay".to_owned());
        readers.streaming(7);
        assert!(readers.saw(&reader(7, Some("walrelay"))));
        assert_eq!(readers.predecessor(), None);
        assert!(readers.saw(&reader(8, Some("walrelay"))));
        assert!(!readers.saw(&reader(8, Some("walrelay"))));
        assert_eq!(readers.predecessor(), Some(relay(8)));
        assert!(readers.saw(&reader(9, Some("walrelay"))));
        assert_eq!(readers.predecessor(), Some(relay(9)));
        readers.streaming(10);
        assert_eq!(readers.predecessor(), None, "that is over");
    }

    #[test]
    fn where_a_stranger_was_seen_nobody_vouches() {
        for stranger in [Some("pg_recvlogical"), None] {
            let mut readers = Readers::new("walrelay".to_owned());
            readers.saw(&reader(8, Some("walrelay")));
            readers.saw(&reader(9, stranger));
            readers.saw(&reader(10, Some("walrelay")));
            assert_eq!(readers.predecessor(), None, "{stranger:?}");
            readers.streaming(11);
            readers.saw(&reader(12, Some("walrelay")));
            assert_eq!(readers.predecessor(), Some(relay(12)));
        }
    }
}
