//! A server that lies: what it sends without end is given up after a bounded number of bytes.

use std::fs;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::sleep;
use walrelay_walsender::{Error, ErrorClass};

use crate::fake::{
    Fake, connect, error, info, listen, message, ready, rows, session, start, stream,
};

/// More than any answer may have, in bytes, with what the sockets hold.
const BOUND: usize = 64 << 20;
/// The bound of a login, and of a message beside the data of a stream.
const SMALL_BOUND: usize = 24 << 20;

/// Sends `begin`, and then `part` again and again, until the client has closed the connection.
/// Returns how many bytes were sent.
async fn flood(mut fake: Fake, begin: &[u8], part: &[u8]) -> usize {
    let chunk = part.repeat((64 << 10) / part.len() + 1);
    let mut sent = begin.len();
    if fake.socket.write_all(begin).await.is_err() {
        return sent;
    }
    // As much as would fill the memory of a machine.
    while sent < 4 << 30 && fake.socket.write_all(&chunk).await.is_ok() {
        sent += chunk.len();
    }
    sent
}

/// Asserts that the client gave up with an error of the protocol after so many bytes.
fn gave_up(what: &str, result: Result<(), Error>, sent: usize, bound: usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    eprintln!("{what}: {} KiB sent, {}", sent >> 10, peak.unwrap_or("?"));
    let error = result.expect_err(what);
    assert_eq!(error.class(), ErrorClass::Protocol, "{what}: {error}");
    let reasons = ["sends more than", "more than 100 parameters", "of length"];
    let shown = error.to_string();
    assert!(
        reasons.iter().any(|reason| shown.contains(reason)),
        "{what}: {shown}"
    );
    assert!(sent < bound, "{what}: {sent} bytes were read");
    assert!(error.to_string().len() < 1_000, "{what}: {error}");
}

/// Header of a message that claims to have almost 1 GB.
fn giant(tag: u8) -> Vec<u8> {
    vec![tag, 0x3F, 0xFF, 0xFF, 0xFF]
}

#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    let row = rows(&[], &[&[Some("x")]])[7..19].to_vec();
    assert_eq!(row[0], b'D', "the row without its description");
    let head = rows(&["a"], &[]);
    let head = &head[..head.len() - 14];
    let parameter = |number: u32| message(b'S', format!("p{number}\0x\0").as_bytes());
    let parameters: Vec<u8> = (0..10_000).flat_map(parameter).collect();
    let notice = message(b'N', b"SNOTICE\0VNOTICE\0C00000\0Mgood day\0\0");
    let mistake = error("ERROR", "42P01", &"x".repeat(1000));
    let large = [giant(b'E'), b"SERROR\0M".to_vec()].concat();
    for (what, begin, part) in [
        ("rows", head, &row[..]),
        ("one row", &[head, &giant(b'D')].concat(), b"xxxx"),
        ("a description", &giant(b'T'), b"xxxx"),
        ("parameters", &[], &parameters),
        ("notices", &[], &notice),
        ("errors", &[], &mistake),
        ("fields of an error", &large, b"xxxx"),
    ] {
        let (mut session, mut fake) = session().await;
        let serving = async {
            fake.receive().await.unwrap();
            flood(fake, begin, part).await
        };
        let client = async {
            let result = session.query("SELECT 1").await.map(drop);
            drop(session);
            result
        };
        let (result, sent) = tokio::join!(client, serving);
        gave_up(what, result, sent, BOUND);
    }
}

#[tokio::test]
async fn the_start_of_a_stream_without_end_is_given_up() {
    let notice = message(b'N', b"SNOTICE\0VNOTICE\0C00000\0Mgood day\0\0");
    for (what, begin, part) in [
        ("notices before a stream", vec![], &notice[..]),
        ("an error before a stream", giant(b'E'), b"xxxx"),
    ] {
        let (session, mut fake) = session().await;
        let serving = async {
            fake.receive().await.unwrap();
            flood(fake, &begin, part).await
        };
        let command = start();
        let starting = async { session.start_replication(&command).await.map(drop) };
        let (result, sent) = tokio::join!(starting, serving);
        gave_up(what, result, sent, BOUND);
    }
    for tag in [b'E', b'N', b'S'] {
        let (mut stream, fake) = stream().await;
        let begin = giant(tag);
        let client = async {
            let result = loop {
                match stream.peek() {
                    Err(error) => break Err(error),
                    Ok(Some(_)) => unreachable!("no frame was sent"),
                    Ok(None) => {}
                }
                if let Err(error) = stream.read().await {
                    break Err(error);
                }
            };
            drop(stream);
            result
        };
        let (result, sent) = tokio::join!(client, flood(fake, &begin, b"xxxx"));
        gave_up("a message in a stream", result, sent, SMALL_BOUND);
    }
}

#[tokio::test]
async fn a_login_without_end_is_given_up() {
    let parameter = message(b'S', b"name\0value\0");
    let notice = message(b'N', b"SNOTICE\0VNOTICE\0C00000\0Mgood day\0\0");
    let accepted = message(b'R', &[0; 4]);
    for (what, begin, part) in [
        ("notices before the login", &[][..], &notice),
        ("parameters after the login", &accepted, &parameter),
        ("notices after the login", &accepted, &notice),
    ] {
        let (listener, port) = listen().await;
        let info = info(port, "connect_timeout=600");
        let serving = async {
            let mut fake = Fake::accept(&listener).await;
            fake.startup().await;
            flood(fake, begin, part).await
        };
        let client = async { connect(&info).await.map(drop) };
        let (result, sent) = tokio::join!(client, serving);
        gave_up(what, result, sent, SMALL_BOUND);
    }
}

/// The texts of an error are cut, and a list that may be long is read within its own bound.
/// A server that does not answer, or a byte at a time, is given up after the limit.
#[tokio::test]
async fn an_answer_that_does_not_end_is_given_up() {
    for drips in [false, true] {
        let (mut session, mut fake) = session().await;
        session.limit_answers(Duration::from_millis(100));
        let serving = async {
            fake.receive().await.unwrap();
            let notice = message(b'N', b"SNOTICE\0VNOTICE\0C00000\0Mgood day\0\0");
            let mut bytes = notice.iter().cycle();
            // Until the client is gone.
            while drips
                && fake
                    .socket
                    .write_all(&[*bytes.next().unwrap()])
                    .await
                    .is_ok()
            {
                sleep(Duration::from_millis(1)).await;
            }
            if !drips {
                assert!(fake.receive().await.is_none());
            }
        };
        let client = async {
            let result = session.query("SELECT 1").await;
            drop(session);
            result.map(drop)
        };
        let (result, ()) = tokio::join!(client, serving);
        let error = result.expect_err("no answer");
        assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::ServerUnavailable);
    }
}

#[tokio::test]
async fn what_is_kept_has_bounds() {
    let (mut session, mut fake) = session().await;
    let long = ready(error("ERROR", "42P01", &"x".repeat(1 << 20)));
    let (result, ()) = tokio::join!(session.query("SELECT 1"), fake.answer(&long));
    let shown = result.unwrap_err().to_string();
    assert!(
        shown.len() < 10_000 && shown.contains('…'),
        "{}",
        shown.len()
    );

    let row = [Some("x")];
    let many: Vec<&[Option<&str>]> = vec![&row; 1_000];
    let answer = ready(rows(&["a"], &many));
    let (found, ()) = tokio::join!(session.query_within("list", 1 << 20), fake.answer(&answer));
    assert_eq!(found.unwrap().len(), 1_000);
    let (refused, ()) = tokio::join!(session.query_within("list", 1 << 16), fake.answer(&answer));
    assert_eq!(refused.unwrap_err().class(), ErrorClass::Protocol);
}
