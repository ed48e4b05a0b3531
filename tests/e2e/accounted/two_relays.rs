//! Two relays share a table, each with its own destination and its own topic of dead letters.

use std::fs;
use std::path::{Path, PathBuf};

use walrelay_testkit::SlotWatch;

use super::{STAYS, next_bucket, prune, rows};
use crate::old_rows::{count, insert, insert_row, partitioned, rig};
use crate::rig::{
    PATIENCE, Relay, Rig, SLOT, assert_has, create_slot, done, output_with, refused, with_source,
};

const OTHER: &str = "other";
const DEAD_LETTERS: &str = "[prune-dead-letters]";

fn unsettled(rows: u32) -> String {
    format!("{rows} of its rows became dead letters of other relays, which have not settled them")
}

/// Writes the configuration of the relay of `slot`, which shares the table with that of `other`.
fn config(rig: &Rig, slot: &str, other: &str) -> PathBuf {
    let topic = format!("dead.{}{slot}", rig.prefix);
    let lines = format!(
        "\n[prune]\nbefore_slot = true\nslots = [\"{other}\"]\n\n[poison]\nunroutable = \"dead-letter\"\n\
         topic = \"{topic}\"\n"
    );
    let path = rig.path(&format!("of-{slot}.toml"));
    let config = with_source(rig.config_and(&lines), &format!("slot = \"{slot}\""));
    fs::rename(config, &path).expect("renamed");
    path
}

/// Starts both relays.
fn start(rig: &Rig, configs: &[PathBuf; 2]) -> [Relay; 2] {
    let [own, other] = configs;
    let relay = rig.streaming(own);
    create_slot(&rig.db(), OTHER);
    [relay, rig.streaming(other)]
}

/// Waits until both relays have sent everything.
fn both_caught_up(rig: &Rig) {
    rig.caught_up();
    let position = rig.slot().wal_end();
    SlotWatch::new(&rig.postgres.url(), OTHER).wait_until(position, PATIENCE);
}

fn drop_dead_letters(config: &Path) {
    done(&output_with(
        "dlq drop --class unroutable --yes",
        config,
        &[],
    ));
}

/// Both destinations refuse an event. Each relay settles its own dead letters, and the last one deletes. A row
/// that becomes a dead letter meanwhile is not settled with the others.
#[test]
fn rows_that_two_destinations_refuse_go_once_both_have_settled_them() {
    for is_partitioned in [false, true] {
        let rig = if is_partitioned {
            partitioned(18)
        } else {
            rig(15)
        };
        let db = rig.db();
        if is_partitioned {
            db.batch("ALTER TABLE outbox ALTER aggregatetype DROP NOT NULL");
        }
        let configs = [config(&rig, SLOT, OTHER), config(&rig, OTHER, SLOT)];
        let [own, other] = &configs;
        let relays = start(&rig, &configs);
        insert(&db, 3, "sent");
        insert_row(&db, "NULL", "dead", "'1'");
        both_caught_up(&rig);
        for config in &configs {
            let pruned = prune(config);
            if is_partitioned {
                refused(&pruned, 65, &[DEAD_LETTERS, "1 of its rows have an open"]);
            } else {
                assert_has(&done(&pruned), &["deleted 0 rows"]);
            }
        }
        drop_dead_letters(own);
        refused(&prune(own), 65, &[DEAD_LETTERS, &unsettled(1)]);
        insert_row(&db, "NULL", "later", "'1'");
        both_caught_up(&rig);
        drop_dead_letters(other);
        refused(&prune(other), 65, &[DEAD_LETTERS, &unsettled(2)]);
        assert_eq!(count(&db, "outbox"), 5);
        drop_dead_letters(own);
        done(&prune(own));
        assert_eq!(count(&db, "outbox"), 0);
        // A bucket without a row is forgotten by each relay.
        done(&prune(other));
        assert_eq!(count(&db, "walrelay_state.account"), 0);
        for relay in relays {
            relay.ends_well();
        }
    }
}

/// Two relays share the table: rows are deleted once both have accounted them. Dead letters of the
/// other one are in a topic that this one does not read.
#[test]
fn rows_stay_until_each_relay_of_the_table_has_sent_them() {
    let rig = rig(18);
    let db = rig.db();
    let other = config(&rig, OTHER, SLOT);
    let config = rig.config_and(
        "\n[prune]\nbefore_slot = true\nslots = [\"other\"]\n\n[poison]\nunroutable = \"skip\"\n",
    );
    let relay = rig.streaming(&config);
    insert(&db, 5, "sent");
    rig.caught_up();
    refused(&prune(&config), 78, &["[prune-no-account]", "slot other"]);
    create_slot(&db, OTHER);
    let second = rig.streaming(&other);
    next_bucket(&db);
    insert(&db, 10, "sent");
    db.batch(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) \
         VALUES (gen_random_uuid(), NULL, 'dead', 'T', '1', now() - interval '4 days')",
    );
    both_caught_up(&rig);
    // The first five were there before the other slot, the dead letter is one of the other relay alone.
    refused(&prune(&config), 65, &[STAYS]);
    assert_eq!((rows(&db, "sent"), rows(&db, "dead")), (5, 1));
    drop_dead_letters(&other);
    refused(&prune(&config), 65, &[STAYS, &unsettled(1)]);
    assert_eq!(rows(&db, "dead"), 1, "its own relay has not settled it");
    second.ends_well();
    relay.ends_well();
}
