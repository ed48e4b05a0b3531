//! Transactions against a server that answers what a test says.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use walrelay_sink::EventPosition;
use walrelay_sink_client::FOREVER;
use walrelay_testkit::Reports;

use super::batch::{Batches, Stop};
use super::*;
use crate::client::Connection;
use crate::client::link::Link;
use crate::client::resp::{Reply, decode};

const NO_ID: &str = "-ERR The ID specified in XADD must be greater than 0-0\r\n";
const BEHIND: &str =
    "-ERR The ID specified in XADD is equal or smaller than the target stream top item\r\n";

fn shared(replicas: u32) -> (Shared, Arc<Reports>) {
    shared_with(replicas, Ids::Position, FOREVER)
}

fn shared_with(replicas: u32, ids: Ids, look_every: Duration) -> (Shared, Arc<Reports>) {
    let reports = Arc::<Reports>::default();
    let settings = Settings {
        max_records: 1_000,
        max_bytes: 1 << 20,
        max_retrying_bytes: 64 << 20,
        max_retrying_keys: 1_000,
        max_message: 1 << 20,
        reply: Duration::from_secs(60),
        pauses: (Duration::ZERO, Duration::ZERO),
        ids,
        look_every,
        refusals: Patience::new(Duration::ZERO),
        wait: Wait {
            replicas,
            fsync: false,
            timeout: Duration::from_millis(500),
        },
    };
    let deliveries = Arc::clone(&reports) as Arc<dyn Deliveries>;
    let window = Window::new(1_000, 1 << 20);
    let settings = Arc::new(settings);
    let shared = Shared::new(
        BatchQueue::default(),
        window,
        settings,
        Arc::default(),
        deliveries,
    );
    (shared, reports)
}

/// Queues the event of the LSN 1 and this row.
fn queue(shared: &Shared, topic: &str, row: u64) {
    queue_keyed(shared, topic, None, row);
}

fn queue_keyed(shared: &Shared, topic: &str, key: Option<&str>, row: u64) {
    let record = Record {
        topic,
        key: key.map(str::as_bytes),
        position: EventPosition::in_first_epoch(1, row),
        ..Record::default()
    };
    shared.accept(&record, topic, row, 1).unwrap();
}

/// Writes once. Each command gets the next reply; returns the commands.
fn write(batches: &mut Batches<'_>, replies: &[&str]) -> (Result<bool, Stop>, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (near, far) = tokio::io::duplex(1 << 20);
        let writing = async {
            let mut link = Link::one(Connection::over(near));
            batches.write(&mut link).await
        };
        tokio::join!(writing, serve(far, replies))
    })
}

async fn serve(mut far: DuplexStream, replies: &[&str]) -> Vec<String> {
    let mut commands = Vec::new();
    let mut input = Vec::new();
    for reply in replies {
        let (command, length) = loop {
            if let Some(decoded) = decode(&input).unwrap() {
                break decoded;
            }
            if far.read_buf(&mut input).await.unwrap() == 0 {
                return commands;
            }
        };
        input.drain(..length);
        commands.push(text(command));
        far.write_all(reply.as_bytes()).await.unwrap();
    }
    commands
}

fn text(command: Reply) -> String {
    let Reply::Array(Some(words)) = command else {
        panic!("{command:?}");
    };
    let word = |word| match word {
        Reply::String(Some(word)) => String::from_utf8(word).unwrap(),
        other => panic!("{other:?}"),
    };
    let words: Vec<String> = words.into_iter().map(word).collect();
    words.join(" ")
}

fn string(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Returns the reply to `XINFO STREAM`.
fn newest(id: &str) -> String {
    format!("*2\r\n{}{}", string("last-generated-id"), string(id))
}

/// Returns the entry with this id of an event with this position.
fn entry(id: &str, position: &str) -> String {
    let fields = string("position") + &string(position);
    format!("*2\r\n{}*2\r\n{fields}", string(id))
}

#[test]
fn a_message_is_sent_for_an_event_that_was_found_when_all_writes_are_refused() {
    let (shared, reports) = shared(1);
    for row in 1..4 {
        queue(&shared, "a", row);
    }
    let mut batches = Batches::new(&shared);
    let found = format!("*1\r\n{}", entry("1-1", "0/1 1"));
    let refused = format!("*2\r\n{BEHIND}{BEHIND}");
    let replies = [
        &*newest("1-1"),
        &found,
        NO_ID,
        "+OK\r\n",
        "+QUEUED\r\n",
        "+QUEUED\r\n",
        &refused,
        ":0\r\n",
        ":1\r\n",
    ];
    let (_, commands) = write(&mut batches, &replies);
    let expected = [
        "XINFO STREAM a",
        "XRANGE a 1-1 1-1",
        "XADD a 0-0 field value",
        "MULTI",
        "XADD a NOMKSTREAM 1-2 position 0/1 2",
        "XADD a NOMKSTREAM 1-3 position 0/1 3",
        "EXEC",
        "PUBLISH walrelay.wait ",
        "WAIT 1 500",
    ];
    assert_eq!(commands, expected);
    assert!(reports.is(|state| state.outcomes.len() == 1));
    assert_eq!(shared.state().records.waiting().len(), 2);
}

#[test]
fn a_round_that_waits_for_replicas_asks_whether_its_server_takes_writes() {
    let readonly = "-READONLY You can't write against a read only replica.\r\n";
    for (probe, counts) in [(NO_ID, true), (readonly, false)] {
        let (shared, reports) = shared(1);
        queue(&shared, "a", 2);
        let mut batches = Batches::new(&shared);
        let (written, _) = write(&mut batches, &[&newest("1-1"), &string("1-2"), ":0\r\n"]);
        assert!(matches!(written, Err(Stop::Pause(_))));
        let (written, commands) = write(&mut batches, &[probe, ":1\r\n"]);
        assert_eq!(commands, ["XADD a 0-0 field value", "WAIT 1 500"]);
        assert_eq!(written.is_ok(), counts);
        assert_eq!(matches!(written, Err(Stop::Connection(_))), !counts);
        assert_eq!(reports.is(|state| state.outcomes.len() == 1), counts);
    }
}

/// A replica that is missing does not hide why nothing was stored.
#[test]
fn a_refused_transaction_is_handled_though_replicas_are_missing() {
    let (shared, _) = shared(1);
    queue(&shared, "a", 2);
    let mut batches = Batches::new(&shared);
    let moved = "-MOVED 1 127.0.0.1:1\r\n";
    let (written, _) = write(&mut batches, &[&newest("1-1"), moved, ":0\r\n"]);
    assert!(matches!(written, Err(Stop::Broken(_))));
}

#[test]
fn a_round_that_stores_nothing_is_followed_by_a_pause() {
    let (shared, _) = shared(0);
    queue(&shared, "a", 2);
    let mut batches = Batches::new(&shared);
    let (written, commands) = write(&mut batches, &[&newest("1-1"), BEHIND]);
    let expected = ["XINFO STREAM a", "XADD a NOMKSTREAM 1-2 position 0/1 2"];
    assert_eq!(commands, expected);
    let Err(Stop::Pause(obstacle)) = written else {
        panic!("no pause");
    };
    assert!(
        obstacle.what.contains("another client"),
        "{}",
        obstacle.what
    );
    // The end of the stream is asked for again.
    let found = format!("*1\r\n{}", entry("1-2", "0/1 2"));
    let (written, commands) = write(&mut batches, &[&newest("1-2"), &found, NO_ID]);
    assert!(written.is_ok());
    let expected = [
        "XINFO STREAM a",
        "XRANGE a 1-2 1-2",
        "XADD a 0-0 field value",
    ];
    assert_eq!(commands, expected);
    assert!(shared.state().records.waiting().is_empty());
}

/// A dead letter comes later than those of newer events.
#[test]
fn a_late_record_is_appended_once_though_the_answer_is_lost() {
    let (shared, reports) = shared(0);
    queue(&shared, "dead", 5);
    queue(&shared, "dead", 10);
    let mut batches = Batches::new(&shared);
    let queued = "+QUEUED\r\n";
    let replies = [&*newest("1-9"), "*0\r\n", NO_ID, "+OK\r\n", queued, queued];
    let (written, commands) = write(&mut batches, &replies);
    assert!(matches!(written, Err(Stop::Connection(_))));
    let appended = "XADD dead NOMKSTREAM 1-10 position 0/1 5";
    let behind = "XADD dead NOMKSTREAM 1-11 position 0/1 10";
    assert_eq!(commands[4..], [appended, behind]);
    // All of it was executed.
    batches.forget();
    let last = entry("1-11", "0/1 10");
    let repeat = format!("*1\r\n{}", entry("1-10", "0/1 5"));
    let newer = format!("*1\r\n{last}");
    let end = format!(
        "*4\r\n{}{}{}{last}",
        string("last-generated-id"),
        string("1-11"),
        string("last-entry")
    );
    let (written, commands) = write(&mut batches, &[&end, &repeat, &newer, NO_ID]);
    assert!(matches!(written, Ok(true)));
    let looked_up = [
        "XINFO STREAM dead",
        "XRANGE dead 1-10 1-10",
        "XRANGE dead 1-11 1-11",
    ];
    assert_eq!(commands[..3], looked_up);
    assert_eq!(commands.len(), 4, "nothing is written: {commands:?}");
    reports.wait_for(2);
    assert_eq!(reports.failures(), []);
}

#[test]
fn a_refused_stream_costs_no_other_record_anything() {
    let (shared, reports) = shared(0);
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    let no_right = "-NOPERM No permissions to access a key\r\n";
    queue_keyed(&shared, "string", Some("k"), 0);
    queue_keyed(&shared, "string", Some("k"), 1);
    queue_keyed(&shared, "good", Some("k"), 2);
    queue(&shared, "forbidden", 3);
    let mut batches = Batches::new(&shared);
    let (written, commands) = write(&mut batches, &[wrong, &newest("1-1"), no_right]);
    assert!(matches!(written, Err(Stop::Again)));
    assert_eq!(commands.len(), 3);
    let (written, commands) = write(&mut batches, &[&string("1-2")]);
    assert!(matches!(written, Ok(true)));
    assert_eq!(commands, ["XADD good NOMKSTREAM 1-2 key k position 0/1 2"]);
    let (written, _) = write(&mut batches, &[]);
    assert!(matches!(written, Ok(false)), "the rest waits for the relay");
    assert_eq!(reports.outcome(2), Ok(()));
    for seq in [0, 3] {
        let error = reports.outcome(seq).unwrap_err();
        assert_eq!(
            error.poison,
            Some(walrelay_sink::Poison::Rejected),
            "{error}"
        );
    }
    let withdrawn = shared.withdraw(0, true);
    let seqs: Vec<u64> = withdrawn.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [0, 1]);
    assert_eq!(reports.state().outcomes.len(), 3);
}

#[test]
fn a_record_that_is_too_large_is_settled_alone() {
    let (shared, reports) = shared(0);
    for row in 2..5 {
        queue(&shared, "a", row);
    }
    let mut batches = Batches::new(&shared);
    let executed = format!(
        "*3\r\n{}-ERR Elements are too large to be stored\r\n{}",
        string("1-2"),
        string("1-4")
    );
    let queued = "+QUEUED\r\n";
    let replies = [
        &*newest("1-1"),
        "+OK\r\n",
        queued,
        queued,
        queued,
        &executed,
    ];
    let (written, _) = write(&mut batches, &replies);
    assert!(matches!(written, Ok(true)));
    let error = reports.outcome(3).unwrap_err();
    assert_eq!(error.poison, Some(walrelay_sink::Poison::Oversize));
    assert!(reports.is(|state| state.is_delivered(2) && state.is_delivered(4)));
    let (written, _) = write(&mut batches, &[]);
    assert!(matches!(written, Ok(false)), "nothing is written again");
}

#[test]
fn a_replica_that_answers_first_does_not_make_entries_lost() {
    let (shared, _) = shared(0);
    queue(&shared, "a", 5);
    let mut batches = Batches::new(&shared);
    let (written, _) = write(&mut batches, &[&newest("1-4"), &string("1-5")]);
    assert!(written.is_ok());
    queue(&shared, "a", 6);
    batches.forget();
    let readonly = "-READONLY You can't write against a read only replica.\r\n";
    let (written, commands) = write(&mut batches, &[&newest("1-3"), readonly]);
    assert_eq!(commands, ["XINFO STREAM a", "XADD a 0-0 field value"]);
    assert!(matches!(written, Err(Stop::Connection(_))));
    // What was delivered is still compared with what the master has.
    batches.forget();
    let replies = [&*newest("1-5"), NO_ID, &string("1-6")];
    let (written, commands) = write(&mut batches, &replies);
    assert!(written.is_ok());
    assert_eq!(
        commands.last().unwrap(),
        "XADD a NOMKSTREAM 1-6 position 0/1 6"
    );
}

#[test]
fn the_ends_of_many_streams_are_asked_for_one_part_after_the_other() {
    let (shared, _) = shared(0);
    for row in 0..20 {
        queue(&shared, &format!("stream-{row}"), row);
    }
    let mut batches = Batches::new(&shared);
    // The reply to the first has not arrived when the second part would be sent.
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asked = runtime.unwrap().block_on(async {
        let mut link = Link::one(Connection::over(near));
        let mut input = Vec::with_capacity(1 << 16);
        tokio::select! {
            biased;
            _ = batches.write(&mut link) => {}
            read = far.read_buf(&mut input) => drop(read.unwrap()),
        }
        String::from_utf8(input).unwrap().matches("XINFO").count()
    });
    assert_eq!(asked, 16);
}

/// Returns the end of a stream with the events of these rows, of which `added` were ever added.
fn stream(added: u64, rows: std::ops::RangeInclusive<u64>) -> String {
    let ends = [("first-entry", *rows.start()), ("last-entry", *rows.end())];
    let ends = ends.map(|(name, row)| {
        let entry = entry(&format!("1-{row}"), &format!("0/1 {row}"));
        string(name) + &entry
    });
    let newest = format!("1-{}", rows.end());
    format!(
        "*10\r\n{}:{}\r\n{}:{added}\r\n{}{}{}",
        string("length"),
        rows.end() + 1 - rows.start(),
        string("entries-added"),
        string("last-generated-id"),
        string(&newest),
        ends.concat()
    )
}

const MISSING: &str = "-ERR no such key\r\n";

/// Returns the lost events that were seen, and the rows of the range.
fn losses(shared: &Shared) -> Vec<(u64, u64, u64)> {
    let losses = shared.stats.losses().list.into_iter();
    let rows = losses.map(|loss| (loss.events, loss.from.row, loss.to.row));
    rows.collect()
}

#[test]
fn a_stream_that_is_gone_is_a_loss_and_the_event_is_appended() {
    for ids in [Ids::Position, Ids::Server] {
        let (shared, reports) = shared_with(0, ids, FOREVER);
        queue(&shared, "a", 3);
        let mut batches = Batches::new(&shared);
        let (written, _) = write(&mut batches, &[&stream(2, 1..=2), &string("1-3")]);
        assert!(matches!(written, Ok(true)));
        queue(&shared, "a", 4);
        let (written, commands) = write(&mut batches, &["$-1\r\n"]);
        assert!(matches!(written, Ok(true)));
        assert!(
            commands[0].starts_with("XADD a NOMKSTREAM "),
            "{commands:?}"
        );
        assert_eq!(losses(&shared), [(3, 1, 3)]);
        assert!(reports.is(|state| state.outcomes.len() == 1));
        let (written, commands) = write(&mut batches, &[MISSING, &string("1-4")]);
        assert!(matches!(written, Ok(true)));
        let id = if ids == Ids::Server { "*" } else { "1-4" };
        let appended = format!("XADD a {id} position 0/1 4");
        assert_eq!(commands, ["XINFO STREAM a", &appended]);
        assert!(reports.is(|state| state.outcomes.len() == 2));
        assert_eq!(losses(&shared).len(), 1, "it is seen once");
    }
}

#[test]
fn a_stream_that_is_gone_costs_no_other_stream_anything() {
    let (shared, reports) = shared(0);
    let mut batches = Batches::new(&shared);
    queue(&shared, "a", 1);
    queue(&shared, "b", 2);
    let queued = "+QUEUED\r\n";
    let stored = |row: u64| string(&format!("1-{row}"));
    let both = format!("*2\r\n{}{}", stored(1), stored(2));
    let replies = [MISSING, MISSING, "+OK\r\n", queued, queued, &both];
    assert!(matches!(write(&mut batches, &replies).0, Ok(true)));
    for (row, topic) in [(3, "a"), (4, "b"), (5, "a")] {
        queue(&shared, topic, row);
    }
    let one = format!("*3\r\n$-1\r\n{}$-1\r\n", stored(4));
    let replies = ["+OK\r\n", queued, queued, queued, &one];
    assert!(matches!(write(&mut batches, &replies).0, Ok(true)));
    assert!(reports.is(|state| state.is_delivered(4) && state.outcomes.len() == 3));
    assert_eq!(losses(&shared), [(1, 1, 1)]);
    let both = format!("*2\r\n{}{}", stored(3), stored(5));
    let replies = [MISSING, "+OK\r\n", queued, queued, &both];
    let (_, commands) = write(&mut batches, &replies);
    assert_eq!(
        commands[2..4],
        ["XADD a 1-3 position 0/1 3", "XADD a 1-5 position 0/1 5"]
    );
    assert!(reports.is(|state| state.is_delivered(3) && state.is_delivered(5)));
}

#[test]
fn a_stream_that_was_restored_is_seen_at_the_next_look() {
    for ids in [Ids::Position, Ids::Server] {
        let (shared, reports) = shared_with(0, ids, Duration::ZERO);
        let mut batches = Batches::new(&shared);
        for row in 3..5 {
            queue(&shared, "a", row);
            let end = stream(row - 1, 1..=row - 1);
            let replies = match row {
                3 => vec![&*end, "$3\r\n1-3\r\n"],
                _ => vec![&*end, NO_ID, "$3\r\n1-4\r\n"],
            };
            assert!(matches!(write(&mut batches, &replies).0, Ok(true)));
        }
        assert_eq!(losses(&shared), []);
        // The copy has 2 of 4 entries, and another writer has added one.
        queue(&shared, "a", 9);
        let replies = [&*stream(3, 1..=2), NO_ID, &string("1-9")];
        assert!(matches!(write(&mut batches, &replies).0, Ok(true)));
        assert_eq!(losses(&shared), [(1, 2, 4)], "{ids:?}");
        assert!(reports.is(|state| state.outcomes.len() == 3));
    }
}

#[test]
fn a_user_that_may_not_look_still_writes_with_ids_of_the_server() {
    let (shared, reports) = shared_with(0, Ids::Server, Duration::ZERO);
    let mut batches = Batches::new(&shared);
    queue(&shared, "a", 1);
    let no_right = "-NOPERM No permissions to run the command\r\n";
    let (written, _) = write(&mut batches, &[no_right, &string("1-1")]);
    assert!(matches!(written, Ok(true)));
    queue(&shared, "a", 2);
    let (_, commands) = write(&mut batches, &["$-1\r\n"]);
    assert_eq!(commands, ["XADD a NOMKSTREAM * position 0/1 2"]);
    assert_eq!(losses(&shared), [(1, 1, 1)]);
    let (_, commands) = write(&mut batches, &[&string("1-1")]);
    assert_eq!(commands, ["XADD a * position 0/1 2"]);
    assert!(reports.is(|state| state.outcomes.len() == 2));
}
