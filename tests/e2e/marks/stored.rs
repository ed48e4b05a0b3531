//! Keys of sent rows that are stored in `walrelay_state.unmarked` stay until their rows are marked, changed or gone.

use std::path::PathBuf;

use super::{STORED, refuse_marks, unmarked};
use crate::old_rows::{UNMARKED, count, insert, marking, rig};
use crate::rig::{Rig, assert_has, done, output_with};

/// Stores the keys of five rows whose marks fail, ends the relay, and lets marks succeed again.
fn with_stored_keys(rig: &Rig) -> PathBuf {
    let db = rig.db();
    let (configured, relay) = marking(rig, 1);
    refuse_marks(&db, "refused");
    insert(&db, 5, "refused");
    relay.says("no mark now");
    rig.caught_up();
    relay.ends_well();
    assert_eq!((count(&db, STORED), unmarked(&db, "refused")), (5, 5));
    db.batch("DROP TRIGGER refuse ON outbox");
    configured
}

/// Numbers of transactions wrap around, so an old one looks like a future one.
#[test]
fn stored_rows_are_marked_after_two_billion_transactions() {
    let rig = rig(17);
    let db = rig.db();
    let configured = with_stored_keys(&rig);
    db.batch(&format!(
        "UPDATE {STORED} SET xid = (xid + 2147483648 - 1000) % 4294967296; \
         DELETE FROM outbox WHERE id = (SELECT key[1]::uuid FROM {STORED} LIMIT 1)"
    ));
    let said = done(&output_with("cutover rollback", &configured, &["--yes"]));
    assert_has(&said, &["marked 4 rows"]);
    assert_eq!((count(&db, STORED), count(&db, UNMARKED)), (0, 0));
}
