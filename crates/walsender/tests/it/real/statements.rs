//! Tests of quoting, values and COPY.

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use proptest::{collection, sample};
use walrelay_walsender::{CopyItem, Error, dollar_quoted, quote_ident, quote_literal};

use super::{info, one, server, sql};

#[tokio::test]
async fn quoted_texts_and_values_are_returned_unchanged() {
    let (postgres, _certificate) = server();
    let mut session = sql(&info(&postgres.url())).await.unwrap();
    for standard in ["on", "off"] {
        let mode = format!("SET standard_conforming_strings = {standard}");
        session.query(&mode).await.unwrap();
        for text in [
            "",
            "it's",
            r"back\slash",
            r"\'; DROP TABLE x; --",
            "Größe \u{1F600}",
            "\n\t\"",
        ] {
            let literal = quote_literal(text);
            // No space before it, so that it shows that it cannot join the word before it.
            assert_eq!(one(&mut session, &format!("SELECT{literal}")).await, text);
            if !text.is_empty() {
                let select = format!("SELECT 1 AS {}", quote_ident(text));
                assert_eq!(session.query(&select).await.unwrap().columns(), [text]);
            }
        }
    }
    let rows = session
        .query("SELECT NULL, ''; SET search_path = ''")
        .await
        .unwrap();
    let row = rows.first().unwrap();
    assert_eq!((row.get(0), row.get(1)), (None, Some("")));
    let timestamp = "SELECT '2024-02-29 12:00+00'::timestamptz AT TIME ZONE 'UTC'";
    assert_eq!(one(&mut session, timestamp).await, "2024-02-29 12:00:00");
    assert_eq!(
        one(&mut session, "SELECT 0.1::float4::float8").await,
        "0.10000000149011612"
    );
    let error = session.query("SELECT 1/0").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("22012"));
    assert_eq!(one(&mut session, "SELECT 1").await, "1");
    // COPY in either direction does not hang.
    assert!(
        session
            .query("COPY (SELECT 1) TO STDOUT")
            .await
            .unwrap()
            .is_empty()
    );
    session.query("CREATE TEMP TABLE t (a int)").await.unwrap();
    let error = session.query("COPY t FROM STDIN").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("57014"));
    assert_eq!(one(&mut session, "SELECT 2").await, "2");
}

/// Any text survives each kind of quotes, whatever `standard_conforming_strings` is.
#[tokio::test]
async fn any_text_is_itself_in_quotes() {
    const PIECES: [&str; 14] = [
        "\"",
        "'",
        "\\",
        "$",
        "$do$",
        "$do2$",
        "$d",
        "o$",
        "\n",
        "\r",
        ";",
        "--",
        "/*",
        "é\u{202e}",
    ];
    let (postgres, _certificate) = server();
    let mut session = sql(&info(&postgres.url())).await.unwrap();
    let texts = collection::vec(sample::select(&PIECES[..]), 1..16);
    let mut runner = TestRunner::default();
    for standard in ["on", "off"] {
        let mode = format!("SET standard_conforming_strings = {standard}");
        session.query(&mode).await.unwrap();
        for _ in 0..200 {
            let mut text = texts.new_tree(&mut runner).unwrap().current().concat();
            while text.len() > 63 {
                text.pop();
            }
            let sql = format!(
                "SELECT{} AS {}, {}",
                quote_literal(&text),
                quote_ident(&text),
                dollar_quoted("do", &text)
            );
            let rows = session.query(&sql).await.unwrap();
            assert_eq!(rows.columns()[0], text, "{sql}");
            let row = rows.first().unwrap();
            assert_eq!(
                (row.get(0), row.get(1)),
                (Some(&*text), Some(&*text)),
                "{sql}"
            );
        }
    }
}

/// COPY returns rows one by one, the session can be used after them, and an error among them is
/// returned.
#[tokio::test]
async fn copy_returns_rows() {
    let (postgres, _) = server();
    let info = info(&postgres.url());
    let session = sql(&info).await.unwrap();
    let long =
        "COPY (SELECT n, repeat('x', 1000), E'a\\tb\\n' FROM generate_series(1, 3000) n) TO STDOUT";
    let mut copy = session.copy_out(long).await.unwrap();
    let mut count = 0;
    loop {
        match copy.peek().unwrap() {
            None => {
                copy.read().await.unwrap();
                continue;
            }
            Some(CopyItem::End) => break,
            Some(CopyItem::Row(row)) => {
                count += 1;
                assert!(row.starts_with(format!("{count}\tx").as_bytes()));
                assert!(row.ends_with(b"x\ta\\tb\\n\n"));
            }
        }
        copy.consume();
    }
    assert_eq!(count, 3000);
    assert_eq!(copy.peek().unwrap(), Some(CopyItem::End));
    let mut session = copy.into_session();
    assert_eq!(one(&mut session, "SELECT 1").await, "1");

    // In the middle of the rows: the next command discards the rest.
    let mut copy = session.copy_out(long).await.unwrap();
    copy.read().await.unwrap();
    let mut session = copy.into_session();
    assert_eq!(one(&mut session, "SELECT 2").await, "2");

    let failing = "COPY (SELECT 1 / (2 - n) FROM generate_series(1, 2) n) TO STDOUT";
    let mut copy = session.copy_out(failing).await.unwrap();
    let error = loop {
        match copy.peek() {
            Ok(None) => drop(copy.read().await.unwrap()),
            Ok(Some(_)) => copy.consume(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.sqlstate(), Some("22012"));
    let session = sql(&info).await.unwrap();
    let error = session
        .copy_out("COPY nothing TO STDOUT")
        .await
        .unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P01"));
    let session = sql(&info).await.unwrap();
    let error = session.copy_out("SELECT 1").await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}
