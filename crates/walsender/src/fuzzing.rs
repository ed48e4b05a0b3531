//! The functions that the fuzz targets run. They are here so that a test can run their corpus.
//!
//! Each takes any bytes, and panics only if an invariant of this crate is broken.

#![expect(clippy::expect_used, reason = "a target ends by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::conninfo::passfile::find;
use crate::framing::buffer::ReadBuffer;
use crate::framing::messages::{self, parse_frame};
use crate::framing::wire::{Allowance, Transport, Wire};
use crate::session::auth;
use crate::{ConnInfo, ConnInfoError, ReplicationStream, Session};

/// A password that a fuzzer does not produce by chance.
const PASSWORD: &str = "Zq9-hunter2-Zq9";

/// Checks that a stream that is read in pieces has the same frames and the same end as in one
/// piece. The first byte is the size of the pieces, less one.
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

/// Checks a server that sends any bytes: during login, as the answer to a command, or as a stream
/// (the first byte chooses). It never gets the password, and login fails because it does not know
/// it.
pub fn servers_may_say_anything(bytes: &[u8]) {
    let Some((&phase, sent)) = bytes.split_first() else {
        return;
    };
    // All bytes must fit into the socket's buffer, because we read only after the write.
    if sent.len() > 16 * 1024 {
        return;
    }
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.write_all(sent).expect("a socket takes so much");
    theirs
        .shutdown(std::net::Shutdown::Write)
        .expect("an end of writing");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime");
    let error = runtime.block_on(run_client(phase, ours));
    let mut received = Vec::new();
    theirs.read_to_end(&mut received).expect("what was written");
    assert!(
        !contains(&received, PASSWORD.as_bytes()),
        "the password itself"
    );
    if let Some(error) = error
        && !contains(sent, PASSWORD.as_bytes())
    {
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(PASSWORD), "{shown}");
    }
}

async fn run_client(phase: u8, ours: UnixStream) -> Option<crate::Error> {
    ours.set_nonblocking(true).expect("a socket");
    let ours = tokio::net::UnixStream::from_std(ours).expect("a socket");
    let mut wire = Wire::new(Transport::Unix(ours), "fuzz".into());
    let info = format!("host=/tmp user=fuzz password={PASSWORD} require_auth=scram-sha-256");
    let info: ConnInfo = info.parse().expect("a connection string");
    let host = info.hosts.first().expect("a host").clone();
    match phase % 3 {
        0 => {
            let login = auth::authenticate(&mut wire, &info, &host, &mut Allowance::login()).await;
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
                        // A stream that has failed returns the same error again.
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

/// Checks any connection string: offsets in errors are within it, no output shows the password, and
/// a valid string is formatted and parsed back.
pub fn connection_strings(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    // The text alone, and after a password.
    connection_string(text);
    connection_string(&format!("postgres://u:{PASSWORD}@{text}"));
    connection_string(&format!("password={PASSWORD}{text}"));
    connection_string(&format!("password='{PASSWORD}' {text}"));
    // The text before a password, unless the text's last value would continue: spaces are allowed
    // between `user=` and its value, a backslash escapes the space, a URL goes on.
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
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(PASSWORD), "{shown} for {text:?}");
        }
        Ok(info) => {
            assert!(!info.hosts.is_empty());
            let redacted = info.redacted();
            let shown = format!("{info:?} {redacted}");
            assert!(!shown.contains(PASSWORD), "{shown} for {text:?}");
            let again: ConnInfo = redacted
                .parse()
                .unwrap_or_else(|error| unreachable!("{error} in {redacted:?} for {text:?}"));
            assert_eq!(again.redacted(), redacted, "for {text:?}");
        }
    }
}

/// Checks any password file: if a line that matches everything is appended, there is a match.
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
            // `None`: the matching line has an empty password.
            assert!(alone.is_ok());
            assert!(!format!("{found:?}").contains(PASSWORD));
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
