//! Asks the server whether replicas and disks have what was written.

use std::time::Duration;

use walrelay_sink::{Disposition, Obstacle};

use crate::client::error::ProtocolError;
use crate::client::resp::{Reply, put_command};

/// A message without a receiver, on its own channel. It is written for the replicas, too, but for those of a
/// cluster.
pub(super) const MESSAGE: [&str; 3] = ["PUBLISH", "walrelay.wait", ""];

/// The holders that an event must have, besides the server's memory, before it counts as delivered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    /// The number of replicas that must have it.
    pub(crate) replicas: u32,
    /// True if it must also be on the disks of the server and of these replicas.
    pub(crate) fsync: bool,
    /// The longest time that the server waits for them.
    pub(crate) timeout: Duration,
}

impl Wait {
    /// Returns true if anything must.
    pub(super) fn is_wanted(self) -> bool {
        self.replicas > 0 || self.fsync
    }

    /// Appends the command. It is about what this connection has written: on one that has written
    /// nothing it counts all replicas, wherever they are.
    pub(super) fn put(self, out: &mut Vec<u8>) {
        let (replicas, millis) = (self.replicas.to_string(), self.timeout.as_millis());
        let millis = millis.to_string();
        if self.fsync {
            put_command(out, &["WAITAOF", "1", &replicas, &millis]);
        } else {
            put_command(out, &["WAIT", &replicas, &millis]);
        }
    }

    /// Returns what is missing by the reply, which is never an error if too few have it.
    pub(super) fn missing(self, reply: &Reply) -> Result<Option<Obstacle>, ProtocolError> {
        let wrong = ProtocolError("no number of replicas");
        let (disks, replicas) = match reply {
            Reply::Integer(replicas) if !self.fsync => (1, *replicas),
            Reply::Array(Some(counts)) if self.fsync => match &**counts {
                [Reply::Integer(disks), Reply::Integer(replicas)] => (*disks, *replicas),
                _ => return Err(wrong),
            },
            _ => return Err(wrong),
        };
        let wanted = self.replicas;
        let what = if disks < 1 {
            "the last events are not on the disk of Redis".to_owned()
        } else if replicas < i64::from(wanted) {
            format!("{replicas} of {wanted} replicas of Redis have the last events")
        } else {
            return Ok(None);
        };
        Ok(Some(Obstacle {
            what,
            disposition: Disposition::Retryable,
            remedy: Some("see that the replicas run and keep up, or lower wait_replicas"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Wait = Wait {
        replicas: 2,
        fsync: false,
        timeout: Duration::from_millis(500),
    };

    #[test]
    fn fewer_replicas_than_wanted_are_missing() {
        let missing = |wait: Wait, reply| wait.missing(&reply).map(|it| it.map(|it| it.what));
        assert_eq!(missing(WAIT, Reply::Integer(2)), Ok(None));
        assert_eq!(missing(WAIT, Reply::Integer(3)), Ok(None));
        let one = missing(WAIT, Reply::Integer(1)).unwrap().unwrap();
        assert!(one.starts_with("1 of 2 replicas"), "{one}");
        let wait = Wait {
            fsync: true,
            ..WAIT
        };
        let counts = |disks, replicas| {
            Reply::Array(Some(vec![Reply::Integer(disks), Reply::Integer(replicas)]))
        };
        assert_eq!(missing(wait, counts(1, 2)), Ok(None));
        assert!(
            missing(wait, counts(0, 2))
                .unwrap()
                .unwrap()
                .contains("disk")
        );
        assert!(missing(wait, counts(1, 1)).unwrap().is_some());
        assert!(missing(wait, Reply::Integer(2)).is_err());
        assert!(missing(WAIT, counts(1, 2)).is_err());
    }

    #[test]
    fn the_server_is_asked_for_replicas() {
        let mut out = Vec::new();
        WAIT.put(&mut out);
        assert!(out.starts_with(b"*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$3\r\n500"));
    }
}
