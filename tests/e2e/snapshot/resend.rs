//! `walrelay resend`: sends chosen rows again.

use std::collections::{BTreeSet, HashMap};

use walrelay_testkit::Delivered;

use super::rig;
use crate::rig::{assert_has, done, output_with, refused, said};

const HEADER: &str = "walrelay-resend";
const POSITION: &str = "walrelay-position";

fn run_of(record: &Delivered) -> Option<&str> {
    record.header(HEADER)
}

/// Chosen rows are sent again with a mark while the relay runs, and nothing else changes.
#[test]
fn resend_sends_chosen_rows_again_alongside_the_relay() {
    let rig = rig(15);
    let relay = rig.relay();
    let config = rig.config();
    let written = rig.workload().rows(300).seed(1).run();
    rig.caught_up();
    let ids: Vec<String> = rig
        .db()
        .column("SELECT id::text FROM outbox ORDER BY seq", &[]);
    let resend = |line: &str| output_with(&format!("resend {line}"), &config, &[]);
    // There is no terminal to ask.
    let asked = resend(&format!("--id {}", ids[7]));
    refused(&asked, 64, &["[resend-not-agreed]"]);
    let dry = resend("--where 'seq BETWEEN 100 AND 149' --dry-run");
    assert_has(&done(&dry), &["would be sent again"]);
    refused(&resend("--where false --yes"), 65, &["[resend-no-rows]"]);
    let before = written.rows as usize;
    assert_eq!(rig.records(before).len(), before);

    let again = resend(&format!("--id {} --id {} --yes", ids[7], ids[3]));
    assert_has(&done(&again), &["2 records acknowledged"]);
    let found = rig.records(before);
    assert_eq!(found.len(), before + 2);
    let marked = found.iter().filter(|record| run_of(record).is_some());
    let marked: Vec<&Delivered> = marked.collect();
    let of = marked.iter().filter_map(|record| record.id.as_deref());
    let of: BTreeSet<_> = of.collect();
    assert_eq!(of, BTreeSet::from([&*ids[3], &*ids[7]]));
    let runs: BTreeSet<_> = marked.iter().filter_map(|record| run_of(record)).collect();
    assert_eq!(runs.len(), 1, "one run has one id");
    // Apart from the mark it equals the record that the relay sent.
    for record in marked {
        let first = found
            .iter()
            .find(|other| other.id == record.id && run_of(other).is_none());
        let first = first.expect("the relay's");
        assert_eq!(
            (&record.topic, &record.key, &record.payload),
            (&first.topic, &first.key, &first.payload)
        );
    }
    done(&resend("--where 'seq > 0' --yes"));
    assert_eq!(rig.records(before).len(), before * 2 + 2);
    assert!(rig.verdict().lost.is_empty());
    relay.ends_well();
}

/// A wrong condition and a wrong id are errors with the server's message.
#[test]
fn resend_names_what_is_wrong() {
    let rig = rig(15);
    let relay = rig.relay();
    rig.workload().rows(20).seed(1).run();
    let config = rig.config();
    let wrong = output_with("resend --where 'no_such_column = 1' --yes", &config, &[]);
    refused(&wrong, 78, &["no_such_column"]);
    let wrong = output_with("resend --id no-uuid --yes", &config, &[]);
    assert!(!wrong.status.success(), "{wrong:?}");
    let help = said(&output_with("resend", &config, &["--help"]));
    assert_has(&help, &["Examples:", "--dry-run"]);
    rig.caught_up();
    relay.ends_well();
}

/// The dry run that the status page starts must not keep the primary busy.
#[test]
fn resend_by_id_reads_no_table_as_a_whole_and_waits_for_no_lock_longer_than_asked() {
    let rig = rig(15);
    let relay = rig.relay();
    rig.workload().rows(20).seed(1).run();
    rig.caught_up();
    let (config, db) = (rig.config(), rig.db());
    let id: String = db.value("SELECT id::text FROM outbox LIMIT 1");
    let by_id = format!("resend --id {id} --dry-run");
    let dry_run = |line: &str| output_with(line, &config, &[]);
    assert_has(&done(&dry_run(&by_id)), &["1 row would be sent again"]);

    let holder = rig.db();
    holder.batch("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE");
    let slow = dry_run(&format!("{by_id} --timeout 300ms"));
    refused(&slow, 69, &["[resend-slow]", "within 0.3 s"]);
    holder.batch("ROLLBACK");

    db.batch("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; CREATE INDEX ON outbox (seq, id)");
    let index = "CREATE INDEX CONCURRENTLY ON public.outbox (\"id\")";
    let unindexed = refused(&dry_run(&by_id), 78, &["[resend-no-index]", index]);
    assert_has(
        &unindexed,
        &["no index of table public.outbox begins with id"],
    );
    let by_condition = dry_run(&format!("resend --where \"id = '{id}'\" --dry-run"));
    assert_has(&done(&by_condition), &["1 row would be sent again"]);
    db.batch(index);
    assert_has(&done(&dry_run(&by_id)), &["1 row would be sent again"]);
    relay.ends_well();
}

/// The number of the event of each key that a consumer ends on, which compares positions as
/// docs/trust/guarantees.md says.
fn kept(records: &[&Delivered]) -> HashMap<Vec<u8>, String> {
    let mut kept: HashMap<Vec<u8>, (Option<String>, String)> = HashMap::new();
    for record in records {
        let key = record.key.clone().expect("a key");
        let position = record.header(POSITION).map(str::to_owned);
        let applies = match (&position, kept.get(&key)) {
            (_, None | Some((None, _))) => true,
            (None, Some((Some(_), _))) => false,
            (Some(now), Some((Some(before), _))) => now > before,
        };
        if applies {
            kept.insert(key, (position, record.value_text().to_owned()));
        }
    }
    let kept = kept.into_iter();
    kept.map(|(key, (_, value))| (key, value)).collect()
}

/// A consumer that compares positions ends on the newest event of a key, although an older one was
/// sent again after it; and on the last one that was sent again where it knows no other.
#[test]
fn resend_leaves_a_consumer_that_compares_positions_on_the_newest_event() {
    let rig = rig(15);
    let config = rig.config_and(&format!("\n[router]\nposition_header = \"{POSITION}\"\n"));
    let relay = rig.streaming(&config);
    let db = rig.db();
    for number in 1..=3 {
        db.batch(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
             VALUES (gen_random_uuid(), 'order', 'key', 'T', '{number}')"
        ));
    }
    rig.caught_up();
    for number in [1, 2] {
        let again = format!("resend --where \"payload = '{number}'\" --yes");
        done(&output_with(&again, &config, &[]));
    }
    let mut records = rig.records(3);
    records.sort_by_key(|record| record.offset);
    assert_eq!(records.len(), 5);
    let all: Vec<&Delivered> = records.iter().collect();
    let (again, first): (Vec<_>, Vec<_>) = all
        .iter()
        .copied()
        .partition(|record| run_of(record).is_some());
    assert!(first.iter().all(|record| record.header(POSITION).is_some()));
    assert!(again.iter().all(|record| record.header(POSITION).is_none()));
    let of = |number: &str| HashMap::from([(b"key".to_vec(), number.to_owned())]);
    assert_eq!(kept(&all), of("3"));
    assert_eq!(kept(&again), of("2"));
    // Newer events of the stream are applied to what was sent again.
    let after: Vec<&Delivered> = again.into_iter().chain(first).collect();
    assert_eq!(kept(&after), of("3"));
    relay.ends_well();
}
