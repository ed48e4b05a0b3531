//! Sentinel: the address of a master, and whether the server there is one.

use std::time::Duration;

use walrelay_sink_client::Servers;

use super::error::{ProtocolError, RedisError};
use super::refusal::{Refusal, meaning};
use super::resp::{Reply, put_command};
use super::{Connection, Credentials};

/// A master, as sentinels know it.
#[derive(Debug, Clone)]
pub(crate) struct Sentinel {
    /// The name of the master.
    pub(crate) master: String,
    /// The login at a sentinel.
    pub(crate) credentials: Credentials,
}

impl Sentinel {
    /// Asks the sentinel at this address for host and port of the master.
    pub(crate) async fn look_up(
        &self,
        sentinels: &Servers,
        host: &str,
        port: u16,
    ) -> Result<(String, u16), RedisError> {
        let mut connection = Connection::open(sentinels, host, port).await?;
        let mut out = Vec::new();
        let expected = self.credentials.put(&mut out) + 1;
        put_command(
            &mut out,
            &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.master],
        );
        let replies = connection.call(&out, expected, sentinels.timeout).await?;
        self.named(&connection, &replies)
    }

    /// Reads the address from the replies to the login and the question.
    fn named(
        &self,
        connection: &Connection,
        replies: &[Reply],
    ) -> Result<(String, u16), RedisError> {
        let error = |reason: String| RedisError::Sentinel {
            address: connection.address.clone(),
            reason,
        };
        let refusal = replies.iter().find_map(|reply| match reply {
            Reply::Error(text) => Some(text),
            _ => None,
        });
        match (refusal, replies.last()) {
            (Some(text), _) if text.starts_with(b"ERR unknown command") => {
                Err(error("the server is no sentinel".to_owned()))
            }
            (Some(text), _) => Err(connection.refused(text)),
            (None, Some(Reply::Array(None))) => Err(error(format!(
                "the sentinel knows no master {:?}",
                self.master
            ))),
            (None, Some(reply)) => address(reply)
                .ok_or_else(|| connection.protocol(ProtocolError("no address of a master"))),
            (None, None) => Err(connection.protocol(ProtocolError("no reply"))),
        }
    }
}

fn address(reply: &Reply) -> Option<(String, u16)> {
    let Reply::Array(Some(members)) = reply else {
        return None;
    };
    let [Reply::String(Some(host)), Reply::String(Some(port))] = &**members else {
        return None;
    };
    let (host, port) = (str::from_utf8(host).ok()?, str::from_utf8(port).ok()?);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// Asks a server for its role: a sentinel that has not heard of a failover names the old master.
pub(super) async fn see_master(
    connection: &mut Connection,
    limit: Duration,
) -> Result<(), RedisError> {
    let mut out = Vec::new();
    put_command(&mut out, &["ROLE"]);
    let replies = connection.call(&out, 1, limit).await?;
    match replies.first() {
        Some(Reply::Array(Some(members))) => match members.first() {
            Some(Reply::String(Some(role))) if role == b"master" => Ok(()),
            Some(Reply::String(Some(_))) => {
                let text = b"READONLY";
                Err(connection.not_ready(text, meaning(text)))
            }
            _ => Err(connection.protocol(ProtocolError("no role"))),
        },
        Some(Reply::Error(text)) if meaning(text) == Refusal::Denied => Err(RedisError::Sentinel {
            address: connection.address.clone(),
            reason: "the user may not use ROLE".to_owned(),
        }),
        Some(Reply::Error(text)) => Err(connection.refused(text)),
        _ => Err(connection.protocol(ProtocolError("no role"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(replies: &[Reply]) -> Result<(String, u16), String> {
        let sentinel = Sentinel {
            master: "mymaster".to_owned(),
            credentials: Credentials {
                username: None,
                password: None,
            },
        };
        let (near, _far) = tokio::io::duplex(64);
        let found = sentinel.named(&Connection::over(near), replies);
        found.map_err(|error| error.to_string())
    }

    fn array(members: &[&str]) -> Reply {
        let string = |text: &&str| Reply::String(Some(text.as_bytes().to_vec()));
        Reply::Array(Some(members.iter().map(string).collect()))
    }

    #[test]
    fn a_sentinel_names_a_host_and_a_port_or_why_it_does_not() {
        let found = named(&[Reply::Status(b"OK".to_vec()), array(&["10.0.0.1", "6379"])]);
        assert_eq!(found, Ok(("10.0.0.1".to_owned(), 6379)));
        assert_eq!(named(&[array(&["::1", "1"])]), Ok(("::1".to_owned(), 1)));
        let error = |text: &str| Reply::Error(text.as_bytes().to_vec());
        let fine = array(&["10.0.0.1", "6379"]);
        for (replies, words) in [
            (vec![Reply::Array(None)], "no master \"mymaster\""),
            (vec![error("ERR unknown command 'SENTINEL'")], "no sentinel"),
            (vec![error("NOAUTH Authentication required.")], "NOAUTH"),
            (vec![error("WRONGPASS invalid"), fine], "WRONGPASS"),
            (vec![array(&["10.0.0.1"])], "no address"),
            (vec![array(&["10.0.0.1", "0"])], "no address"),
            (vec![array(&["10.0.0.1", "65536"])], "no address"),
            (vec![array(&["", "1"])], "no address"),
            (vec![Reply::Integer(1)], "no address"),
            (vec![], "no reply"),
        ] {
            let error = named(&replies).unwrap_err();
            assert!(error.contains(words), "{replies:?}: {error}");
        }
    }
}
