//! The meaning of error replies.

/// The reason why a server is not the only one.
pub(crate) const PART_OF_CLUSTER: &str =
    "the server is a node of a cluster; set `cluster` in [sink.redis]";
const ABORTED_BY: &[u8] = b"EXECABORT Transaction discarded because of: ";

/// The meaning of an error reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server accepts no writes at the moment. They are sent again on the same connection.
    Wait(&'static str, &'static str),
    /// This server accepts no writes, or not yet. They are sent again on a new connection.
    Reconnect(&'static str),
    /// This node does not serve the slot, or not for now.
    Moved,
    /// The id is not above the newest of the stream.
    Behind,
    /// The entry is larger than the server accepts.
    Oversize,
    /// The user may not do it, or is none.
    Denied,
    /// Something must be changed.
    Configuration(&'static str),
    /// The transaction is not executed because one of its commands was refused.
    Aborted,
}

/// Returns the meaning of an error reply.
pub(crate) fn meaning(text: &[u8]) -> Refusal {
    // EXEC gives its own reason in this way.
    let text = text.strip_prefix(ABORTED_BY).unwrap_or(text);
    let says = |part: &str| {
        text.windows(part.len())
            .any(|bytes| bytes == part.as_bytes())
    };
    let begins = |with: &str| text.starts_with(with.as_bytes());
    match &*code(text) {
        "OOM" => Refusal::Wait(
            "Redis has no memory left for writes (maxmemory)",
            "trim or delete entries that were read, or raise maxmemory",
        ),
        "MISCONF" => Refusal::Wait(
            "Redis accepts no writes because it cannot write to its disk",
            "see the server's log, and free space on its disk",
        ),
        "NOREPLICAS" => Refusal::Wait(
            "Redis accepts no writes because it has too few replicas (min-replicas-to-write)",
            "see that the replicas run and are connected",
        ),
        "BUSY" => Refusal::Wait(
            "Redis runs a script that does not end",
            "end it with SCRIPT KILL or FUNCTION KILL",
        ),
        "LOADING" => Refusal::Reconnect("the server still loads its data"),
        "MASTERDOWN" => Refusal::Reconnect("the server is a replica without its master"),
        "READONLY" => Refusal::Reconnect("the server is a replica"),
        // The replies to a WAIT that waits, and to one that comes too late.
        "UNBLOCKED" => Refusal::Reconnect("the server has become a replica"),
        "ERR" if says("cannot be used with replica instances") => {
            Refusal::Reconnect("the server is a replica")
        }
        "CLUSTERDOWN" => Refusal::Reconnect("the cluster is down"),
        "ERR" if says("max number of clients") => {
            Refusal::Reconnect("the server has too many clients (maxclients)")
        }
        "EXECABORT" => Refusal::Aborted,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => Refusal::Denied,
        "WRONGTYPE" => Refusal::Configuration("the key exists and is no stream"),
        "MOVED" | "ASK" | "TRYAGAIN" => Refusal::Moved,
        "CROSSSLOT" => Refusal::Configuration(PART_OF_CLUSTER),
        // Of XADD. The others are of XSETID: another client has written, or deleted the stream.
        // Their texts are compared from the start, as others quote arguments.
        "ERR" if begins("ERR The ID specified in XADD is equal or smaller than") => Refusal::Behind,
        "ERR" if begins("ERR The ID specified in XSETID is smaller than") => Refusal::Behind,
        "ERR" if begins("ERR no such key") => Refusal::Behind,
        "ERR" if says("too large to be stored") => Refusal::Oversize,
        "ERR" if says("invalid bulk length") => Refusal::Configuration(
            "an event is larger than the server's proto-max-bulk-len; lower max_message_size",
        ),
        "ERR" if says("unknown command") => {
            Refusal::Configuration("the server lacks a command, or it was renamed")
        }
        "ERR" if says("exhausted the last possible ID") => {
            Refusal::Configuration("the stream has the greatest possible id")
        }
        "ERR" if says("ERR AUTH") || says("ERR Client sent AUTH") => Refusal::Denied,
        _ => Refusal::Configuration("the server does not support the command"),
    }
}

/// Returns why a stream is refused, by a server that may accept others; `None` if the reply is about something
/// else.
pub(crate) fn refused_stream(text: &[u8]) -> Option<&'static str> {
    let text = text.strip_prefix(ABORTED_BY).unwrap_or(text);
    let says = |part: &str| {
        text.windows(part.len())
            .any(|bytes| bytes == part.as_bytes())
    };
    match &*code(text) {
        "WRONGTYPE" => Some("the key exists and is no stream"),
        // Those of channels and commands are for all streams.
        "NOPERM" if says("access a key") || says("access one of the keys") => {
            Some("the user has not the right to the stream")
        }
        "ERR" if says("exhausted the last possible ID") => {
            Some("the stream has the greatest possible id")
        }
        _ => None,
    }
}

/// Returns true if the server would accept a write, and refuses the id `0-0`, which no entry can have.
pub(crate) fn is_forbidden_id(text: &[u8]) -> bool {
    text.starts_with(b"ERR The ID specified in XADD must be greater than 0-0")
}

/// Returns the first word of an error reply, if it is a code. The rest may quote arguments.
pub(crate) fn code(text: &[u8]) -> String {
    let word = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    let is_code = word.len() <= 20 && word.iter().all(u8::is_ascii_uppercase);
    match std::str::from_utf8(word) {
        Ok(word) if is_code && !word.is_empty() => word.to_owned(),
        _ => "an error".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::resp::{Reply, decode};
    use super::*;

    /// The texts are those of Redis 7.0.15 and Valkey 8.1.
    #[test]
    fn texts_of_the_servers_are_understood() {
        let of = |text: &str| meaning(text.as_bytes());
        assert!(matches!(
            of("OOM command not allowed when used memory > 'maxmemory'."),
            Refusal::Wait(..)
        ));
        assert!(matches!(
            of(
                "EXECABORT Transaction discarded because of: OOM command not allowed when used \
                memory > 'maxmemory'."
            ),
            Refusal::Wait(..)
        ));
        assert!(matches!(
            of("READONLY You can't write against a read only replica."),
            Refusal::Reconnect(_)
        ));
        assert!(matches!(
            of("LOADING Redis is loading the dataset in memory"),
            Refusal::Reconnect(_)
        ));
        for replica in [
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> \
             replica?)",
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 \
             if a replica is configured to be writable (which is not the default) writes to \
             replicas are just local and are not propagated.",
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to \
             replicas are just local and are not propagated.",
        ] {
            assert!(matches!(of(replica), Refusal::Reconnect(_)), "{replica}");
        }
        assert_eq!(
            of("ERR The ID specified in XADD is equal or smaller than the target stream top item"),
            Refusal::Behind
        );
        assert_eq!(
            of("NOPERM this user has no permissions to run the 'xadd' command"),
            Refusal::Denied
        );
        assert_eq!(
            of("ERR AUTH <password> called without any password configured for the default user."),
            Refusal::Denied
        );
        assert!(matches!(
            of("WRONGTYPE Operation against a key holding the wrong kind of value"),
            Refusal::Configuration(_)
        ));
        assert_eq!(
            of("EXECABORT Transaction discarded because of previous errors."),
            Refusal::Aborted
        );
        assert_eq!(
            of("ERR Elements are too large to be stored"),
            Refusal::Oversize
        );
    }

    #[test]
    fn a_missing_right_to_a_key_is_of_its_stream_and_one_to_a_command_is_not() {
        for of_stream in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ] {
            assert!(
                refused_stream(of_stream.as_bytes()).is_some(),
                "{of_stream}"
            );
        }
        for other in [
            "NOPERM this user has no permissions to run the 'xadd' command",
            "NOPERM this user has no permissions to access one of the channels used as arguments",
            "NOPERM No permissions to access a channel",
            "OOM command not allowed when used memory > 'maxmemory'.",
        ] {
            assert_eq!(refused_stream(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn only_a_server_that_takes_writes_refuses_the_id() {
        assert!(is_forbidden_id(
            b"ERR The ID specified in XADD must be greater than 0-0"
        ));
        for other in [
            "READONLY You can't write against a read only replica.",
            "ERR The ID specified in XADD is equal or smaller than the target stream top item",
        ] {
            assert!(!is_forbidden_id(other.as_bytes()), "{other}");
        }
    }

    /// Redis 7.0.15 quotes the first 128 bytes of the arguments, and cuts the last character.
    #[test]
    fn an_error_that_quotes_half_a_character_is_understood() {
        let text =
            b"ERR unknown command 'XADD', with args beginning with: 's' '7-0' 'payload' 'x\xc3' ";
        let line = [b"-", &text[..], b"\r\n"].concat();
        let reply = Reply::Error(text.to_vec());
        assert_eq!(decode(&line), Ok(Some((reply, line.len()))));
        assert!(matches!(meaning(text), Refusal::Configuration(_)));
        assert_eq!(code(text), "ERR");
    }

    #[test]
    fn a_code_quotes_nothing() {
        assert_eq!(code(b"OOM command not allowed"), "OOM");
        assert_eq!(code(b"secret-value refused"), "an error");
        assert_eq!(code(b""), "an error");
        assert_eq!(code(&[0xff]), "an error");
    }
}
