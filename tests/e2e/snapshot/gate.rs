//! A snapshot that is held up in its middle.

use walrelay_testkit::Db;

use crate::rig::Rig;

/// Lines in `[source]` for an outbox with a [`Gate`].
pub(super) const GATED: &str = "snapshot = \"initial\"\nsnapshot_order = [\"seq\"]\nsnapshot_where = \"passes(seq) IS NOT NULL\"";

/// Advisory lock that each row behind a gate waits for.
pub(super) const GATE_LOCK: i64 = 7;

/// Holds up each reading after 500 rows, as long as it is closed: what a test does meanwhile happens
/// in the middle of a snapshot, however long it takes.
pub(super) struct Gate(Db);

impl Gate {
    /// A closed gate.
    pub(super) fn new(rig: &Rig) -> Self {
        let db = rig.db();
        // Rows are read by the index on `seq`. A sort would read all of them first.
        db.batch(&format!(
            "CREATE FUNCTION passes(seq bigint) RETURNS bool LANGUAGE plpgsql AS $$BEGIN \
             IF seq > 500 THEN \
             PERFORM pg_advisory_lock_shared({GATE_LOCK}), pg_advisory_unlock_shared({GATE_LOCK}); \
             END IF; RETURN true; END$$; \
             ALTER DATABASE postgres SET enable_seqscan = off; \
             ALTER DATABASE postgres SET enable_bitmapscan = off; \
             ALTER DATABASE postgres SET enable_sort = off"
        ));
        db.query(&format!("SELECT pg_advisory_lock({GATE_LOCK})"), &[]);
        Self(db)
    }

    pub(super) fn open(self) {
        self.0
            .query(&format!("SELECT pg_advisory_unlock({GATE_LOCK})"), &[]);
    }
}
