//! Tests of framing, failures and status updates with a scripted server.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use walrelay_walsender::{Error, ErrorClass, Frame, ReplicationStream};

use crate::PATIENCE;
use crate::fake::{Fake, error, keepalive, message, status, stream, xlog_data};

/// A frame's data, without borrowing.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Data(u64, Vec<u8>),
    Alive(u64, bool),
}

fn data(number: u64, body: &[u8]) -> Seen {
    Seen::Data(number, body.to_vec())
}

fn seen(frame: Frame<'_>) -> Seen {
    match frame {
        Frame::XLogData { start, body, .. } => data(start.get(), body),
        Frame::Keepalive {
            wal_end,
            reply_requested,
            ..
        } => Seen::Alive(wal_end.get(), reply_requested),
    }
}

/// Returns the next frame; reads until there is one.
async fn next(stream: &mut ReplicationStream) -> Result<Seen, Error> {
    let reading = async {
        loop {
            if let Some(frame) = stream.peek()? {
                let frame = seen(frame);
                stream.consume();
                return Ok(frame);
            }
            stream.read().await?;
        }
    };
    timeout(PATIENCE, reading).await.expect("a frame")
}

/// Polls a future once and drops it, as `select!` does with a branch that is not ready.
fn drop_after_one_poll<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[tokio::test]
async fn frames_split_at_every_byte() {
    let (mut client, mut server) = stream().await;
    let mut bytes = xlog_data(1, b"one");
    bytes.extend(message(b'N', b"VNOTICE\0Mnever mind\0\0"));
    bytes.extend(keepalive(2, true));
    bytes.extend(message(b'S', b"TimeZone\0UTC\0"));
    bytes.extend(xlog_data(3, b""));
    let sending = async {
        for byte in &bytes {
            server.send(&[*byte]).await;
            tokio::task::yield_now().await;
        }
    };
    let receiving = async {
        assert_eq!(next(&mut client).await.unwrap(), data(1, b"one"));
        assert_eq!(next(&mut client).await.unwrap(), Seen::Alive(2, true));
        assert_eq!(next(&mut client).await.unwrap(), data(3, b""));
        assert_eq!(client.peek().unwrap(), None);
    };
    tokio::join!(sending, receiving);
}

/// Both warnings have the same SQLSTATE; only the one about the publication means that rows are left
/// out.
#[tokio::test]
async fn a_warning_ends_the_stream_only_if_a_publication_is_left_out() {
    let (mut client, mut server) = stream().await;
    let warning = |text: &str, routine: &str| {
        let fields = format!("SWARNING\0VWARNING\0C55000\0M{text}\0R{routine}\0\0");
        message(b'N', fields.as_bytes())
    };
    let mut bytes = warning(
        "replication slot \"standby\" is inactive",
        "StandbySlotsHaveCaughtup",
    );
    bytes.extend(xlog_data(1, b"one"));
    server.send(&bytes).await;
    assert_eq!(next(&mut client).await.unwrap(), data(1, b"one"));
    let skipped = warning(
        "skipped loading publication \"walrelay\"",
        "LoadPublications",
    );
    server.send(&skipped).await;
    let error = next(&mut client).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Configuration, "{error}");
}

#[tokio::test]
async fn one_read_brings_a_batch_and_a_frame_stays_until_consumed() {
    let (mut client, mut server) = stream().await;
    let batch: Vec<u8> = (0..500).flat_map(|n| xlog_data(n, b"body")).collect();
    server.send(&batch).await;
    let mut read = 0;
    while read < batch.len() {
        read += client.read().await.unwrap();
    }
    assert_eq!(read, batch.len());
    for n in 0..500 {
        for _ in 0..2 {
            let frame = client.peek().unwrap().unwrap();
            assert_eq!(seen(frame), data(n, b"body"));
        }
        client.consume();
        // Nothing was peeked since, so nothing is consumed.
        client.consume();
    }
    assert_eq!(client.peek().unwrap(), None);
    client.consume();
    assert_eq!(client.peek().unwrap(), None);
}

#[tokio::test]
async fn a_frame_can_be_larger_than_the_buffer() {
    let (mut client, mut server) = stream().await;
    let giant: Vec<u8> = (0..20_000_000_u32).map(|n| n as u8).collect();
    let sending = async {
        server.send(&xlog_data(1, &giant)).await;
        server.send(&xlog_data(2, b"after")).await;
    };
    let receiving = async {
        assert!(next(&mut client).await.unwrap() == data(1, &giant));
        assert_eq!(next(&mut client).await.unwrap(), data(2, b"after"));
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn an_error_comes_after_the_frames_before_it_and_stays() {
    let (mut client, mut server) = stream().await;
    let mut bytes = xlog_data(1, b"a");
    bytes.extend(xlog_data(2, b"b"));
    bytes.extend(error("FATAL", "57P01", "terminating connection"));
    bytes.extend(xlog_data(3, b"nobody gets this"));
    server.send(&bytes).await;
    drop(server);
    while client.read().await.is_ok() {}
    assert_eq!(seen(client.peek().unwrap().unwrap()), data(1, b"a"));
    client.consume();
    assert_eq!(seen(client.peek().unwrap().unwrap()), data(2, b"b"));
    client.consume();
    for _ in 0..3 {
        let failure = client.peek().unwrap_err();
        assert_eq!(failure.sqlstate(), Some("57P01"));
        assert_eq!(failure.class(), ErrorClass::ServerUnavailable);
        assert_eq!(client.read().await.unwrap_err().sqlstate(), Some("57P01"));
    }
    assert_eq!(client.finish().await.unwrap_err().sqlstate(), Some("57P01"));
}

#[tokio::test]
async fn the_connection_ends_in_the_middle_of_a_frame() {
    let (mut client, mut server) = stream().await;
    let mut bytes = xlog_data(1, b"whole");
    bytes.extend_from_slice(&xlog_data(2, b"half")[..20]);
    server.send(&bytes).await;
    drop(server);
    assert_eq!(next(&mut client).await.unwrap(), data(1, b"whole"));
    for _ in 0..2 {
        let failure = next(&mut client).await.unwrap_err();
        assert!(matches!(failure, Error::Closed { .. }), "{failure}");
        assert!(failure.is_retryable());
        assert!(client.peek().is_err());
    }
}

#[tokio::test]
async fn the_server_ends_the_stream() {
    // CopyDone, and the message that a walsender sends when its server shuts down.
    for end in [message(b'c', b""), message(b'C', b"COPY 0\0")] {
        let (mut client, mut server) = stream().await;
        let mut bytes = keepalive(9, false);
        bytes.extend(end);
        server.send(&bytes).await;
        assert_eq!(next(&mut client).await.unwrap(), Seen::Alive(9, false));
        for _ in 0..2 {
            let failure = next(&mut client).await.unwrap_err();
            assert!(matches!(failure, Error::Closed { .. }), "{failure}");
        }
    }
}

#[tokio::test]
async fn what_is_not_the_protocol_stops_the_stream() {
    let mut longest = vec![b'd'];
    longest.extend_from_slice(&0x7FFF_FFFF_u32.to_be_bytes());
    let mut negative = vec![b'd'];
    negative.extend_from_slice(&0x8000_0000_u32.to_be_bytes());
    for hostile in [
        vec![b'd', 0, 0, 0, 3],
        longest,
        negative,
        message(b'd', b"?"),
        message(b'd', &[b'w'; 10]),
        message(b'T', b"\0\0"),
    ] {
        let (mut client, mut server) = stream().await;
        let mut bytes = xlog_data(1, b"good");
        bytes.extend(hostile);
        bytes.extend(xlog_data(2, b"behind"));
        server.send(&bytes).await;
        assert_eq!(next(&mut client).await.unwrap(), data(1, b"good"));
        for _ in 0..2 {
            let failure = next(&mut client).await.unwrap_err();
            assert_eq!(failure.class(), ErrorClass::Protocol, "{failure}");
            assert!(!failure.is_retryable());
        }
    }
}

#[tokio::test]
async fn a_read_that_is_dropped_loses_nothing() {
    let (mut client, mut server) = stream().await;
    let sending = async {
        for number in 0..2_000_u64 {
            let bytes = xlog_data(number, &number.to_le_bytes());
            let (left, right) = bytes.split_at(number as usize % bytes.len());
            server.send(left).await;
            if number % 3 == 0 {
                tokio::task::yield_now().await;
            }
            server.send(right).await;
        }
    };
    let receiving = async {
        let mut expected = 0_u64;
        let mut dropped = 0;
        while expected < 2_000 {
            tokio::select! {
                biased;
                // Ready at every other poll.
                () = tokio::task::yield_now() => dropped += 1,
                read = client.read() => { read.unwrap(); }
            }
            tokio::select! {
                biased;
                read = client.read() => { read.unwrap(); }
                () = tokio::task::yield_now() => dropped += 1,
            }
            while let Some(frame) = client.peek().unwrap() {
                assert_eq!(seen(frame), data(expected, &expected.to_le_bytes()));
                client.consume();
                expected += 1;
            }
        }
        assert!(dropped > 0, "no read was ever dropped");
    };
    tokio::join!(sending, receiving);
}

/// Receives status updates as the server: (written, flushed, reply requested).
async fn updates(server: &mut Fake, count: usize) -> Vec<(u64, u64, bool)> {
    let mut all = Vec::new();
    while all.len() < count {
        let received = timeout(PATIENCE, server.receive()).await;
        let (tag, body) = received.expect("a status update").unwrap();
        assert_eq!((tag, body[0], body.len()), (b'd', b'r', 34));
        let number = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().unwrap());
        all.push((number(1), number(9), body[33] != 0));
    }
    all
}

#[tokio::test]
async fn positions_never_go_back_and_unsent_updates_are_replaced() {
    let (mut client, mut server) = stream().await;
    let mut ask = status(100, 50);
    ask.reply_requested = true;
    client.queue_status(ask);
    client.queue_status(status(120, 60));
    client.flush().await.unwrap();
    // Nothing is written, because nothing new is queued.
    client.flush().await.unwrap();
    client.queue_status(status(90, 40));
    client.flush().await.unwrap();
    client.queue_status(status(200, 150));
    client.flush().await.unwrap();
    assert_eq!(
        updates(&mut server, 3).await,
        [(120, 60, true), (120, 60, false), (200, 150, false)]
    );
    client.queue_status(status(300, 300));
    drop(client);
    assert_eq!(server.receive().await, None, "nothing but what was flushed");
}

/// A server asks for replies without an end, and reads none: those that are not written are replaced.
#[tokio::test]
async fn replies_that_the_server_does_not_read_are_two_at_most() {
    const QUESTIONS: u64 = 10_000;
    let (mut client, mut server) = stream().await;
    let (mut last, mut written, mut stuck) = (0, 0, 0);
    while stuck < QUESTIONS {
        last += 1;
        client.queue_status(status(last, last));
        if let Some(done) = drop_after_one_poll(client.flush()) {
            done.unwrap();
            written += 1;
        } else {
            stuck += 1;
        }
        // The runtime must poll the socket before it can become ready again.
        tokio::task::yield_now().await;
    }
    let reading = async {
        let (mut count, mut before) = (0, 0);
        while before < last {
            before = updates(&mut server, 1).await[0].0;
            count += 1;
        }
        count
    };
    let (flushed, count) = tokio::join!(client.flush(), reading);
    flushed.unwrap();
    assert!(count <= written + 2, "{count} of {last}, {written} written");
}

#[tokio::test]
async fn a_flush_that_is_dropped_completes_later() {
    let (mut client, mut server) = stream().await;
    // The server does not read, so at some time a write is incomplete or not begun.
    let mut last = 0;
    let mut stuck = 0;
    while stuck < 50 {
        last += 1;
        client.queue_status(status(last, last));
        if let Some(done) = drop_after_one_poll(client.flush()) {
            done.unwrap();
        } else {
            stuck += 1;
            // The runtime must poll the socket before it can become ready again.
            tokio::task::yield_now().await;
        }
    }
    let reading = async {
        let mut before = 0;
        while before < last {
            let (written, flushed, _) = updates(&mut server, 1).await[0];
            assert_eq!(written, flushed);
            assert!(written > before, "{written} after {before}");
            before = written;
        }
    };
    let (flushed, ()) = tokio::join!(client.flush(), reading);
    flushed.unwrap();
}

#[tokio::test]
async fn finish_writes_all_updates_and_waits_for_the_end() {
    let (mut client, mut server) = stream().await;
    client.queue_status(status(7, 7));
    let serving = async {
        assert_eq!(updates(&mut server, 1).await, [(7, 7, false)]);
        assert_eq!(server.receive().await, Some((b'c', Vec::new())));
        // A transaction is sent to its end, also after the server's CopyDone.
        server.send(&xlog_data(8, b"thrown away")).await;
        server.send(&message(b'c', b"")).await;
        server.send(&xlog_data(9, b"thrown away")).await;
        server.send(&message(b'C', b"COPY 0\0")).await;
        server.send(&message(b'C', b"START_REPLICATION\0")).await;
        server.send(&message(b'Z', b"I")).await;
        assert_eq!(server.receive().await, Some((b'X', Vec::new())));
        assert_eq!(server.receive().await, None);
    };
    let (finished, ()) = tokio::join!(client.finish(), serving);
    finished.unwrap();
}

#[tokio::test]
async fn finish_returns_the_error_that_ended_the_stream() {
    let (client, mut server) = stream().await;
    let serving = async {
        assert_eq!(server.receive().await, Some((b'c', Vec::new())));
        server.send(&message(b'c', b"")).await;
        server.send(&error("ERROR", "XX000", "what now")).await;
        server.socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = server.socket.read_to_end(&mut rest).await;
    };
    let (finished, ()) = tokio::join!(client.finish(), serving);
    assert_eq!(finished.unwrap_err().sqlstate(), Some("XX000"));

    let (client, server) = stream().await;
    drop(server);
    assert!(client.finish().await.unwrap_err().is_retryable());
}
