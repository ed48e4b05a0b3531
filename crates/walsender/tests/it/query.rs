//! Tests of queries and of a refused START_REPLICATION with a scripted server.

use std::time::Duration;

use walrelay_walsender::{Error, ErrorClass, Session};

use crate::PATIENCE;
use crate::fake::{error, message, ready, rows, session, start};

#[tokio::test]
async fn the_rows_of_the_last_statement_with_rows_are_returned() {
    let (mut session, mut fake) = session().await;
    let mut bytes = rows(&["old"], &[&[Some("x")]]);
    bytes.extend(rows(
        &["a", "b"],
        &[&[Some("1"), None], &[Some(""), Some("ö")]],
    ));
    bytes.extend(message(b'S', b"TimeZone\0Europe/Berlin\0"));
    bytes.extend(message(b'C', b"SET\0"));
    let bytes = ready(bytes);
    let (found, ()) = tokio::join!(session.query("several"), fake.answer(&bytes));
    let found = found.unwrap();
    assert_eq!(found.columns(), ["a", "b"]);
    assert_eq!(found.len(), 2);
    let values: Vec<_> = found
        .iter()
        .map(|row| {
            (
                row.get("a"),
                row.get(1),
                row.get("b"),
                row.get(2),
                row.get("c"),
            )
        })
        .collect();
    assert_eq!(
        values,
        [
            (Some("1"), None, None, None, None),
            (Some(""), Some("ö"), Some("ö"), None, None)
        ]
    );
    assert_eq!(session.parameter("TimeZone"), Some("Europe/Berlin"));
    assert!(
        !format!("{found:?} {:?}", found.first()).contains('ö'),
        "Debug shows values"
    );
}

/// Several statements take one round trip: all are received before the first answer is sent.
#[tokio::test]
async fn statements_that_are_sent_together_are_answered_one_by_one() {
    let (mut session, mut fake) = session().await;
    let serving = async {
        for sql in ["one", "two", "three"] {
            let sent = format!("{sql}\0").into_bytes();
            assert_eq!(fake.receive().await, Some((b'Q', sent)));
        }
        for (column, values) in [("a", &[Some("1")][..]), ("b", &[]), ("c", &[None])] {
            let lines: Vec<&[Option<&str>]> = values.iter().map(std::slice::from_ref).collect();
            fake.send(&ready(rows(&[column], &lines))).await;
        }
    };
    let statements = ["one", "two", "three"];
    let (found, ()) = tokio::join!(session.query_all(&statements), serving);
    let found = found.unwrap();
    let columns: Vec<_> = found
        .iter()
        .map(|rows| (rows.columns(), rows.len()))
        .collect();
    let expected: [(&[String], usize); 3] = [
        (&["a".to_owned()], 1),
        (&["b".to_owned()], 0),
        (&["c".to_owned()], 1),
    ];
    assert_eq!(columns, expected);

    // If the first fails, the next command discards the answers to the others.
    let serving = async {
        for _ in 0..2 {
            fake.receive().await.unwrap();
        }
        let mut bytes = ready(error("ERROR", "42P01", "no such table"));
        bytes.extend(ready(rows(&["late"], &[&[Some("x")]])));
        fake.send(&bytes).await;
    };
    let (result, ()) = tokio::join!(session.query_all(&["bad", "good"]), serving);
    assert_eq!(result.unwrap_err().class(), ErrorClass::Configuration);
    let next = ready(rows(&["next"], &[]));
    let (found, ()) = tokio::join!(session.query("next"), fake.answer(&next));
    assert_eq!(found.unwrap().columns(), ["next"]);
}

#[tokio::test]
async fn a_session_survives_an_error_and_a_dropped_query() {
    let (mut session, mut fake) = session().await;
    let failed = ready(error("ERROR", "42P01", "no such table"));
    let (result, ()) = tokio::join!(session.query("one"), fake.answer(&failed));
    let refusal = result.unwrap_err();
    assert_eq!(refusal.class(), ErrorClass::Configuration);
    assert_eq!(refusal.server().unwrap().message, "no such table");

    // Dropped in the middle of the answer: between the names of the columns and the first row.
    let description = rows(&["dropped"], &[]).len() - message(b'C', b"SELECT 1\0").len();
    let half = async {
        fake.answer(&rows(&["dropped"], &[])[..description]).await;
        // Let the query read it.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = session.query("two") => unreachable!("its answer is not complete"),
        () = half => {}
    }
    let serving = async {
        fake.send(&ready(rows(&["dropped"], &[&[Some("x")]]))[description..])
            .await;
        assert_eq!(fake.receive().await, Some((b'Q', b"three\0".to_vec())));
        fake.send(&ready(rows(&["kept"], &[]))).await;
    };
    let (found, ()) = tokio::join!(session.query("three"), serving);
    assert_eq!(found.unwrap().columns(), ["kept"]);

    // NUL is never sent to the server.
    let nul = session.query("SELECT '\0'").await.unwrap_err();
    assert!(matches!(nul, Error::Nul { .. }), "{nul}");

    let serving = async {
        fake.answer(&message(b'G', &[0, 0, 0])).await;
        assert_eq!(fake.receive().await.unwrap().0, b'f');
        let failed = error("ERROR", "57014", "COPY from stdin failed");
        fake.send(&ready(failed)).await;
    };
    let (result, ()) = tokio::join!(session.query("COPY t FROM STDIN"), serving);
    assert_eq!(result.unwrap_err().sqlstate(), Some("57014"));

    session.close().await;
    assert_eq!(fake.receive().await, Some((b'X', Vec::new())));
    assert_eq!(fake.receive().await, None);
}

#[tokio::test]
async fn a_fatal_error_is_reported_instead_of_the_closed_connection() {
    let (mut session, mut fake) = session().await;
    let serving = async {
        fake.answer(&error("FATAL", "57P02", "terminating connection"))
            .await;
        drop(fake);
    };
    let (result, ()) = tokio::join!(session.query("one"), serving);
    assert_eq!(result.unwrap_err().sqlstate(), Some("57P02"));
    assert!(session.query("two").await.unwrap_err().is_retryable());
}

#[tokio::test]
async fn a_refused_start_returns_the_reason_and_terminates() {
    let (session, mut fake) = session().await;
    let serving = async {
        let busy = "replication slot \"s\" is active for PID 7";
        fake.answer(&ready(error("ERROR", "55006", busy))).await;
        assert_eq!(fake.receive().await, Some((b'X', Vec::new())));
    };
    let start = start();
    let (result, ()) = tokio::join!(session.start_replication(&start), serving);
    assert_eq!(result.unwrap_err().class(), ErrorClass::SlotInUse);
}

/// Waits until something has arrived at the session that it has not read.
async fn until_not_quiet(session: &Session) {
    let arrived = async {
        while session.is_quiet() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, arrived).await.unwrap();
}

/// What the server sends unasked shows without a query: a changed parameter, or the end.
#[tokio::test]
async fn a_session_is_quiet_until_the_server_sends_something() {
    let (mut session, mut fake) = session().await;
    assert!(session.is_quiet());
    fake.send(&message(b'S', b"TimeZone\0Europe/Berlin\0"))
        .await;
    until_not_quiet(&session).await;
    let answer = ready(rows(&["a"], &[&[Some("1")]]));
    let (found, ()) = tokio::join!(session.query("SELECT 1"), fake.answer(&answer));
    assert_eq!(found.unwrap().len(), 1);
    assert!(session.is_quiet());
    drop(fake);
    until_not_quiet(&session).await;
    let error = session.query("SELECT 1").await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::ServerUnavailable);
}
