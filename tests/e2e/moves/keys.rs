//! The stored keys of rows that are not marked yet, after a move to a server with other OIDs.

use super::{copy, step};
use crate::old_rows;
use crate::rig::{Rig, done, insert, output_with};

#[test]
fn stored_keys_of_a_copy_name_the_tables_of_the_new_server() {
    let old = Rig::with_outbox(17);
    let mut new = Rig::new(15);
    new.db().batch("CREATE TABLE other (id uuid PRIMARY KEY)");
    new = new.outbox();
    new.prefix.clone_from(&old.prefix);
    for rig in [&old, &new] {
        rig.db().batch(
            "ALTER TABLE outbox ADD sent_at timestamptz, ADD created_at timestamptz DEFAULT now()",
        );
    }
    let [from, to] = [&old, &new].map(|rig| {
        // Creates the table of the keys. Without marks it creates the slot, too.
        done(&output_with("init", &old_rows::config(rig, ""), &[]));
        let config = rig.config();
        done(&output_with("init", &config, &[]));
        config
    });
    let relay = old.streaming(&from);
    insert(&old.db(), 1);
    old.caught_up();
    done(&step(&to, "prepare"));
    done(&step(&from, "drain --yes"));
    relay.ends_well();
    copy(&old, &new);
    let former: i64 = old.db().value("SELECT 'outbox'::regclass::oid::int8");
    let db = new.db();
    let key = format!(
        "(slot, relation, \"table\", key_columns, row_columns, xid, key, hash) \
         VALUES ('walrelay', {former}, '{{public,outbox}}', '{{id}}', '{{id}}', 700, '{{7}}', 'aa')"
    );
    db.batch(&format!("INSERT INTO walrelay_state.unmarked {key}"));
    let dead = key
        .replace("(slot, ", "(lsn, \"row\", error, run, slot, ")
        .replace(
            "('walrelay', ",
            "('0/1', 0, 'no topic', 'run', 'walrelay', ",
        );
    db.batch(&walrelay_postgres_source::dead_rows::create_sql(None));
    db.batch(&format!("INSERT INTO walrelay_state.dead {dead}"));
    done(&step(&to, "switch --yes"));
    for table in ["unmarked", "dead"] {
        let sql = format!(
            "SELECT relation = 'outbox'::regclass AND xid = 0 AND key = '{{7}}' FROM walrelay_state.{table}"
        );
        assert!(db.value::<bool>(&sql), "{table}");
    }
}
