//! What the fuzz targets run, here so that their corpus is also an ordinary test.
//!
//! Each takes any bytes and panics only when a promise of this crate is broken.

#![expect(clippy::expect_used, reason = "a target ends by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::conninfo::passfile::find;
use crate::framing::buffer::ReadBuffer;
use crate::framing::messages::{self, parse_frame};
use crate::framing::wire::{Transport, Wire};
use crate::session::auth;
use crate::{ConnInfo, ConnInfoError, ReplicationStream, Session};

/// Like nothing that a fuzzer comes upon by chance.
const PASSWORD: &str = "Zq9-hunter2-Zq9";

/// A stream cut into pieces of any size is the same frames, and ends in the same way, as in one
/// piece. The first byte is the size.
pub fn frames_do_not_depend_on_reads(bytes: &[u8]) {
    let Some((&size, stream)) = bytes.split_first() else {
        return;
    };
    let mut expected = Vec::new();
    let mut rest = stream;
    let end = loop {
        match parse_frame(rest) {
            Ok(Some((frame, length))) => {
                assert!((1..=rest.len()).contains(&length), "{length}");
                expected.push(format!("{frame:?}"));
                rest = &rest[length..];
            }
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };

    let mut buffer = ReadBuffer::new(64);
    let mut found = Vec::new();
    let mut pieces = stream.chunks(usize::from(size) + 1);
    let found_end = 'stream: loop {
        loop {
            let layout = match messages::layout(buffer.unread()) {
                Ok(Some(layout)) => layout,
                Ok(None) => break,
                Err(error) => break 'stream Some(error.to_string()),
            };
            let message = &buffer.unread()[..layout.total];
            if let Some(frame) = messages::frame(message, layout.kind) {
                found.push(format!("{frame:?}"));
            } else if let Some(error) = messages::end_of_stream(message, layout.kind) {
                break 'stream Some(error.to_string());
            }
            buffer.advance(layout.total);
        }
        let Some(piece) = pieces.next() else {
            break None;
        };
        buffer.room().extend_from_slice(piece);
    };
    assert_eq!(found, expected);
    assert_eq!(found_end, end);
}

/// A server that says anything: while we log in, in answer to a command, while it streams (the
/// first byte chooses). It never gets the password, nor lets us in without knowing it.
pub fn servers_may_say_anything(bytes: &[u8]) {
    let Some((&way, said)) = bytes.split_first() else {
        return;
    };
    // The other side of the socket is not read until the end.
    if said.len() > 16 * 1024 {
        return;
    }
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.write_all(said).expect("a socket takes so much");
    theirs
        .shutdown(std::net::Shutdown::Write)
        .expect("an end of writing");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime");
    let error = runtime.block_on(converse(way, ours));
    let mut heard = Vec::new();
    theirs.read_to_end(&mut heard).expect("what was written");
    assert!(
        !contains(&heard, PASSWORD.as_bytes()),
        "the password itself"
    );
    if let Some(error) = error
        && !contains(said, PASSWORD.as_bytes())
    {
        let told = format!("{error} {error:?}");
        assert!(!told.contains(PASSWORD), "{told}");
    }
}

async fn converse(way: u8, ours: UnixStream) -> Option<crate::Error> {
    ours.set_nonblocking(true).expect("a socket");
    let ours = tokio::net::UnixStream::from_std(ours).expect("a socket");
    let mut wire = Wire::new(Transport::Unix(ours), "fuzz".into());
    let info = format!("host=/tmp user=fuzz password={PASSWORD} require_auth=scram-sha-256");
    let info: ConnInfo = info.parse().expect("a connection string");
    let host = info.hosts.first().expect("a host").clone();
    match way % 3 {
        0 => {
            let login = auth::authenticate(&mut wire, &info, &host).await;
            assert!(login.is_err(), "in, and nobody proved anything");
            login.err()
        }
        1 => {
            let parameters = vec![("server_version".to_owned(), "18.0".to_owned())];
            let mut session = Session::new(wire, host, parameters, 1).expect("a session");
            match session.query("SELECT 1").await {
                Err(error) => Some(error),
                Ok(rows) => {
                    assert_eq!(rows.iter().count(), rows.len());
                    let columns = rows.columns().len();
                    assert!(rows.iter().all(|row| row.get(columns).is_none()));
                    None
                }
            }
        }
        _ => {
            let mut stream = ReplicationStream::new(wire);
            loop {
                while let Some(_frame) = match stream.peek() {
                    Ok(frame) => frame,
                    Err(error) => {
                        // An end is an end.
                        let again = stream.peek().err().map(|error| error.to_string());
                        assert_eq!(again, Some(error.to_string()));
                        return Some(error);
                    }
                } {
                    stream.consume();
                }
                if let Err(error) = stream.read().await {
                    return Some(error);
                }
            }
        }
    }
}

/// Any connection string: errors point into it and show no password; what is understood reads back.
pub fn connection_strings(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    // As it is, and behind a password.
    connection_string(text);
    connection_string(&format!("postgres://u:{PASSWORD}@{text}"));
    connection_string(&format!("password={PASSWORD}{text}"));
    connection_string(&format!("password='{PASSWORD}' {text}"));
    // Before one, unless what would follow is not a password but the end of a value: blanks may
    // stand between `user=` and its value, a backslash takes the blank, an URL goes on.
    let open = text.trim_end().ends_with(['=', '\\']) || text.starts_with("postgres");
    if !open && text.parse::<ConnInfo>().is_ok() {
        connection_string(&format!("{text} password='{PASSWORD}'"));
    }
}

fn connection_string(text: &str) {
    match text.parse::<ConnInfo>() {
        Err(error) => {
            if let ConnInfoError::Syntax { offset, .. }
            | ConnInfoError::UnknownParameter { offset, .. }
            | ConnInfoError::Duplicate { offset, .. } = error
            {
                assert!(offset <= text.len(), "{error:?} in {text:?}");
            }
            let told = format!("{error} {error:?}");
            assert!(!told.contains(PASSWORD), "{told} for {text:?}");
        }
        Ok(info) => {
            assert!(!info.hosts.is_empty());
            let redacted = info.redacted();
            let told = format!("{info:?} {redacted}");
            assert!(!told.contains(PASSWORD), "{told} for {text:?}");
            let again: ConnInfo = redacted
                .parse()
                .unwrap_or_else(|error| unreachable!("{error} in {redacted:?} for {text:?}"));
            assert_eq!(again.redacted(), redacted, "for {text:?}");
        }
    }
}

/// Any password file: behind it a line that matches is found, unless an earlier one is.
pub fn password_files(bytes: &[u8]) {
    let info: ConnInfo = "host=db user=relay dbname=app".parse().expect("a string");
    let host = info.hosts.first().expect("a host");
    let lines = bytes.split(|byte| *byte == b'\n').count();
    let alone = find(bytes, &info, host);
    let mut longer = bytes.to_vec();
    longer.extend_from_slice(b"\n*:*:*:*:");
    longer.extend_from_slice(PASSWORD.as_bytes());
    match find(&longer, &info, host) {
        Err(line) => assert!((1..=lines).contains(&line), "{line} of {lines}"),
        Ok(found) => {
            // None: the line that matched has an empty password.
            assert!(alone.is_ok());
            assert!(!format!("{found:?}").contains(PASSWORD));
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
