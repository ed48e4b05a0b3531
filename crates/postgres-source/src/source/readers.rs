//! [`Readers`]: the processes that read the slot while this process did not.

use walrelay_relay::{HolderKind, Predecessor};

use crate::catalog::SlotReader;

/// The server processes that have read the slot since this process last did, as far as queries have
/// shown them.
///
/// A process counts as another relay if it is a walsender with this relay's `application_name`:
/// relays that stand by for each other share a configuration, or at least `application_name` in
/// `[source] url` (docs/adr/0019-a-slot-that-changes-hands.md). Every other reader is a stranger:
/// it consumes events without sending them to the sink. If a stranger was seen, no predecessor is
/// reported, because it may have consumed events.
#[derive(Debug, Default)]
pub(super) struct Readers {
    application_name: String,
    /// PID of the walsender of this process' last stream. The walsender may outlive the connection.
    own: Option<i64>,
    /// PID of the reader that was seen last.
    last: Option<i64>,
    /// The other relay that was seen last.
    relay: Option<Predecessor>,
    /// A stranger was seen.
    stranger: bool,
}

impl Readers {
    /// Creates the list, with no reader. `application_name`: that of this process' sessions.
    pub(super) fn new(application_name: String) -> Self {
        Self {
            application_name,
            ..Self::default()
        }
    }

    /// This process has started a stream by this walsender, which may outlive the connection.
    pub(super) fn started(&mut self, walsender: i32) {
        self.own = Some(i64::from(walsender));
    }

    /// This process streams from this walsender. Forgets the readers that were seen before.
    pub(super) fn streaming(&mut self, walsender: i32) {
        *self = Self::new(std::mem::take(&mut self.application_name));
        self.own = Some(i64::from(walsender));
    }

    /// Records a reader that a query has shown. Returns whether the previous one was another.
    pub(super) fn record(&mut self, reader: &SlotReader) -> bool {
        let new = self.last.replace(reader.pid) != Some(reader.pid);
        match self.kind(reader) {
            HolderKind::Unknown => {}
            HolderKind::Relay => {
                self.relay = Some(Predecessor::Relay {
                    pid: reader.pid,
                    application_name: self.application_name.clone(),
                });
            }
            HolderKind::Stranger => self.stranger = true,
        }
        new
    }

    /// Returns whose process the reader is. That of a connection that this process lost is
    /// `Unknown`.
    pub(super) fn kind(&self, reader: &SlotReader) -> HolderKind {
        if self.is_own(reader.pid) {
            return HolderKind::Unknown;
        }
        match &reader.application_name {
            Some(name) if reader.walsender && *name == self.application_name => HolderKind::Relay,
            _ => HolderKind::Stranger,
        }
    }

    /// Returns true if `pid` is the walsender of this process' current or last stream.
    pub(super) fn is_own(&self, pid: i64) -> bool {
        self.own == Some(pid)
    }

    /// Returns the relay that was seen last, if no stranger was seen.
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
            client: None,
            walsender: name.is_some(),
            since: None,
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
        assert!(readers.record(&reader(7, Some("walrelay"))));
        assert_eq!(readers.predecessor(), None);
        assert!(readers.record(&reader(8, Some("walrelay"))));
        assert!(!readers.record(&reader(8, Some("walrelay"))));
        assert_eq!(readers.predecessor(), Some(relay(8)));
        assert!(readers.record(&reader(9, Some("walrelay"))));
        assert_eq!(readers.predecessor(), Some(relay(9)));
        readers.streaming(10);
        assert_eq!(readers.predecessor(), None, "that is over");
    }

    #[test]
    fn after_a_stranger_there_is_no_predecessor() {
        for stranger in [Some("pg_recvlogical"), None] {
            let mut readers = Readers::new("walrelay".to_owned());
            readers.record(&reader(8, Some("walrelay")));
            readers.record(&reader(9, stranger));
            readers.record(&reader(10, Some("walrelay")));
            assert_eq!(readers.predecessor(), None, "{stranger:?}");
            readers.streaming(11);
            readers.record(&reader(12, Some("walrelay")));
            assert_eq!(readers.predecessor(), Some(relay(12)));
        }
    }
}
