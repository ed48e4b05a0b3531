//! The account of sent rows: how many rows of each table and time bucket were sent, and the sum of
//! their hashes, so that a row is deleted only if this relay saw it acknowledged.
//!
//! [`PendingAccount`] belongs to the core: it adds up the rows of each transaction. When the
//! transaction is acknowledged, the sums move to [`SentAccount`], from which the source writes them
//! into the database before it confirms the position. Each transaction is counted once, however
//! often the server sends it: commits before the written position are not counted again.
//!
//! Whatever is counted too often or not at all makes the account differ from the table, and rows of
//! a bucket that differs stay (docs/adr/0056-an-account-of-sent-rows.md).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use walrelay_event_router::epoch_micros;
use walrelay_lsn::{Lsn, RelationId, RelationMap};
use walrelay_pgoutput::{Relation, ReplicaIdentity, Tuple, Value};
use walrelay_sink::{EventPosition, lock};

/// Seconds of a time bucket. Buckets begin at multiples of it since 1970-01-01 UTC.
pub const BUCKET_SECONDS: i64 = 600;

/// The columns by which a row is accounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountColumns {
    /// The column with the id of events, if the route names one.
    pub id: Option<String>,
    /// Columns that may hold a row's age: the first that a table has is used.
    pub age: Vec<String>,
}

/// A time bucket of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// The table or partition that the WAL names.
    pub relation: RelationId,
    /// The columns that are hashed, in the order of the table, and the column of the age at the end.
    pub columns: Arc<[String]>,
    /// The number of the bucket: the age column's time, in units of [`BUCKET_SECONDS`] since 1970.
    pub number: i64,
}

/// A number of rows, and the sums of both halves of their hashes. Equal sums mean equal rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowSum {
    /// The number of rows.
    pub rows: i64,
    /// The sum of the first eight bytes of each hash, as signed numbers.
    pub high: i128,
    /// The sum of the next eight bytes.
    pub low: i128,
}

impl RowSum {
    fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.high += other.high;
        self.low += other.low;
    }

    fn subtract(&mut self, other: Self) {
        self.rows -= other.rows;
        self.high -= other.high;
        self.low -= other.low;
    }
}

/// The rows of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketSum {
    /// Rows whose records were acknowledged, and rows that are no events or were skipped.
    pub sent: RowSum,
    /// Rows whose dead letters were acknowledged.
    pub diverted: RowSum,
}

impl BucketSum {
    fn add(&mut self, other: Self) {
        self.sent.add(other.sent);
        self.diverted.add(other.diverted);
    }
}

/// The sums of the transactions of a range of the WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The position up to which all was counted before.
    pub from: Lsn,
    /// The position up to which all is counted now.
    pub to: Lsn,
    /// The sums by bucket.
    pub sums: HashMap<Bucket, BucketSum>,
}

/// The sums of acknowledged transactions that are not written yet.
#[derive(Debug)]
pub struct SentAccount {
    columns: AccountColumns,
    /// The events of the InSink transactions may be dead letters, which nothing tells any more.
    writes_dead_letters: bool,
    state: Mutex<Acknowledged>,
}

#[derive(Debug, Default)]
struct Acknowledged {
    /// Rows of this stream are counted.
    counts: bool,
    /// Changes when what was counted is forgotten.
    generation: u64,
    /// The position up to which sums were taken.
    from: Lsn,
    /// The position up to which all is counted.
    upto: Lsn,
    sums: HashMap<Bucket, BucketSum>,
    /// Sums that were taken. They may be written already, if the answer was lost.
    taken: Option<Counted>,
}

impl Acknowledged {
    fn forget(&mut self, through: Lsn, counts: bool) {
        *self = Self {
            counts,
            generation: self.generation + 1,
            from: through,
            upto: through,
            ..Self::default()
        };
    }
}

impl SentAccount {
    /// Creates an account that counts nothing before a stream begins. `writes_dead_letters`: events
    /// may become dead letters.
    pub fn new(columns: AccountColumns, writes_dead_letters: bool) -> Self {
        Self {
            columns,
            writes_dead_letters,
            state: Mutex::default(),
        }
    }

    /// Begins a stream. `through`: the position up to which the database has counted; `None`: rows of this
    /// stream are not counted. Sums that continue this position are kept.
    pub fn begin(&self, through: Option<Lsn>) {
        let mut state = lock(&self.state);
        let Some(through) = through else {
            state.forget(Lsn::ZERO, false);
            return;
        };
        if state
            .taken
            .as_ref()
            .is_some_and(|taken| taken.to == through)
        {
            state.taken = None;
        }
        let expected = state.taken.as_ref().map_or(state.from, |taken| taken.from);
        if !state.counts || expected != through {
            state.forget(through, true);
        }
    }

    /// Begins a snapshot, whose rows are the only ones to be counted until the stream begins.
    pub fn begin_snapshot(&self) {
        lock(&self.state).forget(Lsn::ZERO, true);
    }

    /// Returns sums to be written, if there are any: the same ones until they are
    /// [written](Self::written).
    pub fn take(&self) -> Option<Counted> {
        let mut state = lock(&self.state);
        if state.taken.is_none() && !state.sums.is_empty() {
            let (from, to) = (state.from, state.upto);
            let sums = std::mem::take(&mut state.sums);
            state.from = to;
            state.taken = Some(Counted { from, to, sums });
        }
        state.taken.clone()
    }

    /// Notes that the taken sums are written.
    pub fn written(&self) {
        lock(&self.state).taken = None;
    }
}

/// The columns of an announced table.
#[derive(Debug)]
struct Accounted {
    /// Positions of the hashed columns in a row, ascending.
    hashed: Vec<usize>,
    /// Position of the age column.
    age: usize,
    names: Arc<[String]>,
}

/// A row that was offered to the sink.
#[derive(Debug)]
struct OfferedRow {
    position: EventPosition,
    /// The bucket and the row; `None`: it is not counted.
    row: Option<(Bucket, RowSum)>,
}

/// A row that is counted as sent, while its record is in flight: the sink may still refuse it.
#[derive(Debug)]
struct CountedRow {
    position: EventPosition,
    relation: RelationId,
    /// The number of the bucket.
    number: i64,
    /// The halves of its hash.
    high: i64,
    low: i64,
}

/// The sum of some rows of a transaction.
#[derive(Debug)]
struct Entry {
    /// The start of the commit record.
    commit: u64,
    bucket: Bucket,
    sum: BucketSum,
}

/// The sums of transactions that are not acknowledged yet.
pub(crate) struct PendingAccount {
    shared: Arc<SentAccount>,
    generation: u64,
    tables: RelationMap<Accounted>,
    /// In the order of the WAL.
    entries: VecDeque<Entry>,
    /// Commit records that begin before this position are counted.
    counted_before: u64,
    /// Events that became dead letters, until their transactions are confirmed.
    diverted: Vec<EventPosition>,
    /// In the order of the WAL. Empty if no event becomes a dead letter.
    in_flight: VecDeque<CountedRow>,
    offered: Option<OfferedRow>,
    /// The hashed text of a row, so that it is not allocated anew.
    text: Vec<u8>,
}

impl PendingAccount {
    pub(crate) fn new(shared: Arc<SentAccount>) -> Self {
        Self {
            shared,
            generation: 0,
            tables: RelationMap::new(),
            entries: VecDeque::new(),
            counted_before: 0,
            diverted: Vec::new(),
            in_flight: VecDeque::new(),
            offered: None,
            text: Vec::new(),
        }
    }

    /// Begins a connection, after [`SentAccount::begin`].
    pub(crate) fn connected(&mut self) {
        let (generation, upto) = {
            let state = lock(&self.shared.state);
            (state.generation, state.upto.get())
        };
        if self.generation != generation {
            self.generation = generation;
            self.forget();
        }
        self.counted_before = self.counted_before.max(upto);
    }

    /// Learns the columns of an outbox table: those of the replica identity and of the event's id,
    /// and the age. A table without an age is not counted, nor one whose rows only the age would identify: an
    /// unsent row could take the place of a sent one.
    pub(crate) fn announce(&mut self, relation: &Relation<'_>) {
        self.tables.remove(relation.id);
        let keyed = matches!(
            relation.replica_identity,
            ReplicaIdentity::Default | ReplicaIdentity::Index
        );
        let wanted = &self.shared.columns;
        let position = |name: &String| relation.columns().position(|column| column.name == name);
        let Some(age) = wanted.age.iter().find_map(position) else {
            return;
        };
        let (mut hashed, mut names) = (Vec::new(), Vec::new());
        for (at, column) in relation.columns().enumerate() {
            let is_id = wanted.id.as_ref().is_some_and(|id| id == column.name);
            if at != age && (is_id || keyed && column.is_key) {
                hashed.push(at);
                names.push(column.name.to_owned());
            }
        }
        if hashed.is_empty() {
            return;
        }
        names.extend(
            relation
                .columns()
                .nth(age)
                .map(|column| column.name.to_owned()),
        );
        let names = names.into();
        self.tables
            .insert(relation.id, Accounted { hashed, age, names });
    }

    /// Forgets the announced tables: the server announces them again on each connection.
    pub(crate) fn clear_tables(&mut self) {
        self.tables.clear();
    }

    /// Reads a row that is offered to the sink, or passed over.
    pub(crate) fn offer(
        &mut self,
        position: EventPosition,
        relation: RelationId,
        tuple: &Tuple<'_>,
    ) {
        if self
            .offered
            .as_ref()
            .is_some_and(|row| row.position == position)
        {
            return;
        }
        let row = (position.lsn >= self.counted_before)
            .then(|| self.read(relation, tuple))
            .flatten();
        self.offered = Some(OfferedRow { position, row });
    }

    /// Returns bucket and hash of a row. `None`: the table has no age, or the row's is no finite time.
    fn read(&mut self, relation: RelationId, tuple: &Tuple<'_>) -> Option<(Bucket, RowSum)> {
        let table = self.tables.get(relation)?;
        let text = &mut self.text;
        text.clear();
        let mut hashed = table.hashed.iter().peekable();
        let mut micros = None;
        for (at, value) in tuple.values().enumerate() {
            if at == table.age {
                let Value::Text(age) = value else { return None };
                micros = epoch_micros(age);
            }
            if hashed.next_if_eq(&&at).is_some() {
                append(text, value)?;
            }
        }
        let micros = micros.filter(|_| hashed.peek().is_none())?;
        write(text, format_args!("{micros}"));
        let bucket = Bucket {
            relation,
            columns: Arc::clone(&table.names),
            number: micros.div_euclid(BUCKET_SECONDS * 1_000_000),
        };
        let hash = Sha256::digest(&*text);
        let half = |from: usize| {
            let bytes = hash.get(from..).and_then(|rest| rest.first_chunk());
            i128::from(bytes.map_or(0, |bytes| i64::from_be_bytes(*bytes)))
        };
        let (high, low) = (half(0), half(8));
        Some((bucket, RowSum { rows: 1, high, low }))
    }

    /// Counts the row that was offered: the sink took its record, or it needs none. `diverted`: its
    /// record is a dead letter.
    pub(crate) fn keep_offered(&mut self, diverted: bool) {
        let Some(OfferedRow { position, row }) = self.offered.take() else {
            return;
        };
        // The transaction may be read again, and its row be sent this time.
        self.diverted.retain(|diverted| *diverted != position);
        if diverted {
            self.diverted.push(position);
        }
        let Some((bucket, row)) = row else { return };
        let mut sum = BucketSum::default();
        if diverted {
            sum.diverted = row;
        } else {
            sum.sent = row;
            if self.shared.writes_dead_letters {
                self.in_flight.push_back(CountedRow {
                    position,
                    relation: bucket.relation,
                    number: bucket.number,
                    // Each is the sum of one number.
                    high: row.high as i64,
                    low: row.low as i64,
                });
            }
        }
        match self.entries.back_mut() {
            Some(last) if last.commit == position.lsn && last.bucket == bucket => last.sum.add(sum),
            _ => self.entries.push_back(Entry {
                commit: position.lsn,
                bucket,
                sum,
            }),
        }
    }

    /// Counts an event as diverted that was counted as sent: a dead letter takes the place of its record.
    pub(crate) fn divert(&mut self, event: EventPosition) {
        if !self.diverted.contains(&event) {
            self.diverted.push(event);
        }
        let Ok(at) = self
            .in_flight
            .binary_search_by_key(&event, |row| row.position)
        else {
            return;
        };
        let Some(counted) = self.in_flight.remove(at) else {
            return;
        };
        let row = RowSum {
            rows: 1,
            high: counted.high.into(),
            low: counted.low.into(),
        };
        let mut entries = self.entries.iter_mut().rev();
        let entry = entries.find(|entry| {
            entry.commit == event.lsn
                && entry.bucket.relation == counted.relation
                && entry.bucket.number == counted.number
        });
        if let Some(entry) = entry {
            entry.sum.sent.subtract(row);
            entry.sum.diverted.add(row);
        }
    }

    /// Counts the row that was offered as before: its record was taken, or acknowledged.
    pub(crate) fn keep_acknowledged(&mut self) {
        let position = self.offered.as_ref().map(|row| row.position);
        let diverted = position.is_some_and(|position| self.diverted.contains(&position));
        self.keep_offered(diverted);
    }

    /// Counts the row that was offered, which the sink had before this process began. Whether it
    /// became a dead letter is unknown, so it is not counted if it may be one.
    pub(crate) fn keep_stored(&mut self) {
        if self.shared.writes_dead_letters {
            self.offered = None;
        } else {
            self.keep_offered(false);
        }
    }

    /// Notes that all rows of the transaction, whose commit record begins here, are counted.
    pub(crate) fn committed(&mut self, commit: Lsn) {
        self.counted_before = self.counted_before.max(commit.get() + 1);
    }

    /// Passes on the sums of the transactions before `confirmed`, which are acknowledged. `first`: the
    /// event of the first record in flight.
    pub(crate) fn release(&mut self, confirmed: Lsn, first: Option<EventPosition>) {
        match first {
            Some(first) => {
                let before = self.in_flight.partition_point(|row| row.position < first);
                self.in_flight.drain(..before);
            }
            None => self.in_flight.clear(),
        }
        let is_acknowledged = |entry: &Entry| entry.commit < confirmed.get();
        if !self.entries.front().is_some_and(is_acknowledged) {
            return;
        }
        let mut state = lock(&self.shared.state);
        // Otherwise the source began anew meanwhile: the sums are those of another stream.
        let is_same = state.counts && state.generation == self.generation;
        while self.entries.front().is_some_and(is_acknowledged)
            && let Some(entry) = self.entries.pop_front()
        {
            if is_same {
                state.sums.entry(entry.bucket).or_default().add(entry.sum);
            }
        }
        state.upto = state.upto.max(confirmed);
        self.diverted
            .retain(|position| position.lsn >= confirmed.get());
    }

    /// Forgets the sums of the transaction of this event and of later ones: they are read again.
    ///
    /// Dead letters stay known. After a lost connection one may be acknowledged before its transaction is
    /// read again, and the core of the next sink passes over its row.
    pub(crate) fn forget_from(&mut self, event: EventPosition) {
        self.offered = None;
        let is_later = |entry: &Entry| entry.commit >= event.lsn;
        while self.entries.back().is_some_and(is_later) {
            self.entries.pop_back();
        }
        self.counted_before = self.counted_before.min(event.lsn);
        let kept = self
            .in_flight
            .partition_point(|row| row.position.lsn < event.lsn);
        self.in_flight.truncate(kept);
    }

    /// Forgets all that is not acknowledged: it is read again.
    pub(crate) fn forget(&mut self) {
        self.offered = None;
        self.entries.clear();
        self.counted_before = 0;
        self.diverted.clear();
        self.in_flight.clear();
    }
}

// Not derived: sums are made of values of rows.
impl fmt::Debug for PendingAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingAccount")
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

/// Appends a value as the SQL of the source writes it: its length in characters, and its text.
/// `None`: the value is not known.
fn append(text: &mut Vec<u8>, value: Value<'_>) -> Option<()> {
    match value {
        Value::Null => text.extend_from_slice(b"n;"),
        Value::Text(value) => {
            // Continuation bytes of UTF-8 begin no character.
            let length = value.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            write(text, format_args!("{length}:"));
            text.extend_from_slice(value);
            text.push(b';');
        }
        Value::UnchangedToast | Value::Binary(_) => return None,
    }
    Some(())
}

/// Appends a formatted text.
fn write(text: &mut Vec<u8>, arguments: fmt::Arguments<'_>) {
    // Writing to a vector does not fail.
    let _ = text.write_fmt(arguments);
}

#[cfg(test)]
mod tests {
    use walrelay_pgoutput::{Message, decode};

    use super::*;

    const ID: RelationId = RelationId::new(7);

    /// Returns the Relation message of `public.outbox (id, body, created_at)`, whose key is `id` with the
    /// replica identity `d`.
    fn relation(identity: u8) -> Vec<u8> {
        let mut body = b"R\0\0\0\x07public\0outbox\0".to_vec();
        body.extend([identity, 0, 3]);
        for (key, name) in [(1, "id"), (0, "body"), (0, "created_at")] {
            body.push(key);
            body.extend(name.bytes());
            body.extend(b"\0\0\0\0\x19\xff\xff\xff\xff");
        }
        body
    }

    fn row(id: &str, age: &str) -> Vec<u8> {
        let mut body = b"I\0\0\0\x07N\0\x03".to_vec();
        for value in [id, "x", age] {
            body.push(b't');
            body.extend((value.len() as u32).to_be_bytes());
            body.extend(value.bytes());
        }
        body
    }

    fn pending(writes_dead_letters: bool) -> (Arc<SentAccount>, PendingAccount) {
        pending_of(Some("id"), b'd', writes_dead_letters)
    }

    /// Returns an account that began. `id`: the column of the event's id. `identity`: the table's replica identity.
    fn pending_of(
        id: Option<&str>,
        identity: u8,
        writes_dead_letters: bool,
    ) -> (Arc<SentAccount>, PendingAccount) {
        let columns = AccountColumns {
            id: id.map(str::to_owned),
            age: ["occurred_at", "created_at"].map(str::to_owned).to_vec(),
        };
        let shared = Arc::new(SentAccount::new(columns, writes_dead_letters));
        let mut pending = PendingAccount::new(Arc::clone(&shared));
        shared.begin(Some(Lsn::new(1)));
        pending.connected();
        announce_as(&mut pending, identity);
        (shared, pending)
    }

    fn announce(pending: &mut PendingAccount) {
        announce_as(pending, b'd');
    }

    fn announce_as(pending: &mut PendingAccount, identity: u8) {
        let body = relation(identity);
        let Ok(Message::Relation(relation)) = decode(&body) else {
            panic!("no relation");
        };
        pending.announce(&relation);
    }

    fn offer(pending: &mut PendingAccount, lsn: u64, row_number: u64, id: &str) {
        offer_at(pending, (lsn, row_number), id, "2026-11-28 10:07:00+00");
    }

    fn offer_at(pending: &mut PendingAccount, (lsn, number): (u64, u64), id: &str, age: &str) {
        let body = row(id, age);
        let Ok(Message::Insert(insert)) = decode(&body) else {
            panic!("no row");
        };
        let position = EventPosition::in_first_epoch(lsn, number);
        pending.offer(position, insert.relation, &insert.tuple);
    }

    /// Sends a transaction of rows with these ids.
    fn send(pending: &mut PendingAccount, lsn: u64, ids: &[&str]) {
        for (number, id) in ids.iter().enumerate() {
            offer(pending, lsn, number as u64, id);
            pending.keep_offered(false);
        }
        pending.committed(Lsn::new(lsn));
    }

    /// Returns the rows and dead letters that were counted, and the sum that they have.
    fn counted(shared: &SentAccount) -> (i64, i64, i128) {
        let counted = shared.take();
        shared.written();
        let sums: Vec<BucketSum> = counted
            .into_iter()
            .flat_map(|counted| counted.sums.into_values())
            .collect();
        let sum = |each: fn(&BucketSum) -> i64| sums.iter().map(each).sum();
        (
            sum(|one| one.sent.rows),
            sum(|one| one.diverted.rows),
            sums.iter().map(|one| one.sent.high).sum(),
        )
    }

    /// With the replica identity FULL all columns are key columns, so there is no key.
    #[test]
    fn rows_that_only_their_age_would_identify_are_not_counted() {
        for (id, identity, expected) in [
            (None, b'f', 0),
            (None, b'n', 0),
            (None, b'd', 1),
            (None, b'i', 1),
            (Some("id"), b'f', 1),
            (Some("other"), b'f', 0),
        ] {
            let (shared, mut rows) = pending_of(id, identity, false);
            send(&mut rows, 10, &["a"]);
            rows.release(Lsn::new(11), None);
            assert_eq!(counted(&shared).0, expected, "{id:?}, {identity}");
        }
    }

    #[test]
    fn acknowledged_transactions_are_counted_once() {
        let (shared, mut rows) = pending(false);
        send(&mut rows, 10, &["a", "b"]);
        send(&mut rows, 20, &["c"]);
        rows.release(Lsn::new(11), None);
        let (first, _, sum) = counted(&shared);
        assert_eq!(first, 2);
        // The server sends all of it again on a new connection: the database has the first one.
        shared.begin(Some(Lsn::new(11)));
        rows.connected();
        announce(&mut rows);
        send(&mut rows, 10, &["a", "b"]);
        rows.release(Lsn::new(21), None);
        assert_eq!(counted(&shared).0, 1, "the second one, once");
        // Another process, from the beginning of the WAL.
        let (other, mut again) = pending(false);
        send(&mut again, 10, &["b", "a"]);
        again.release(Lsn::new(11), None);
        assert_eq!(counted(&other), (2, 0, sum), "whatever the order");
    }

    #[test]
    fn a_transaction_that_was_cut_is_counted_anew() {
        let (shared, mut rows) = pending(false);
        offer(&mut rows, 10, 0, "a");
        rows.keep_offered(false);
        rows.forget_from(EventPosition::in_first_epoch(10, 0));
        send(&mut rows, 10, &["a", "b"]);
        rows.release(Lsn::new(11), None);
        assert_eq!(counted(&shared).0, 2);
    }

    /// The first row became a dead letter, and the sink failed after it. The next core passes over it.
    #[test]
    fn a_dead_letter_is_told_from_a_sent_row_also_after_a_failure_of_the_sink() {
        let (shared, mut rows) = pending(true);
        offer(&mut rows, 10, 0, "a");
        rows.keep_offered(true);
        offer(&mut rows, 10, 1, "b");
        rows.keep_offered(false);
        rows.forget_from(EventPosition::in_first_epoch(10, 2));
        for (number, id) in ["a", "b"].iter().enumerate() {
            offer(&mut rows, 10, number as u64, id);
            rows.keep_acknowledged();
        }
        offer(&mut rows, 10, 2, "c");
        rows.keep_offered(false);
        rows.committed(Lsn::new(10));
        rows.release(Lsn::new(11), None);
        let (sent, diverted, _) = counted(&shared);
        assert_eq!((sent, diverted), (2, 1));
    }

    /// The connection was lost after the first row, whose dead letter was acknowledged then. The sink failed
    /// before the transaction was read again.
    #[test]
    fn a_dead_letter_is_told_from_a_sent_row_also_after_a_lost_connection() {
        let (shared, mut rows) = pending(true);
        for (number, id) in ["a", "b"].iter().enumerate() {
            offer(&mut rows, 10, number as u64, id);
            rows.keep_offered(true);
        }
        rows.forget_from(EventPosition::in_first_epoch(10, 0));
        rows.forget_from(EventPosition::in_first_epoch(10, 1));
        offer(&mut rows, 10, 0, "a");
        rows.keep_acknowledged();
        // The second row is no dead letter any more.
        offer(&mut rows, 10, 1, "b");
        rows.keep_offered(false);
        rows.committed(Lsn::new(10));
        rows.release(Lsn::new(11), None);
        let (sent, diverted, _) = counted(&shared);
        assert_eq!((sent, diverted), (1, 1));
        assert!(rows.diverted.is_empty());
    }

    #[test]
    fn a_row_whose_record_is_refused_is_counted_as_a_dead_letter() {
        let (shared, mut rows) = pending(true);
        for (number, id) in ["a", "b", "c"].iter().enumerate() {
            offer(&mut rows, 10, number as u64, id);
            rows.keep_offered(false);
        }
        rows.committed(Lsn::new(10));
        let event = |row| EventPosition::in_first_epoch(10, row);
        rows.release(Lsn::new(5), Some(event(1)));
        assert_eq!(rows.in_flight.len(), 2, "the first is acknowledged");
        rows.divert(event(1));
        rows.divert(event(1));
        rows.release(Lsn::new(11), None);
        let (sent, diverted, sum) = counted(&shared);
        assert_eq!((sent, diverted), (2, 1));
        assert!(rows.in_flight.is_empty());
        let (shared, mut others) = pending(false);
        send(&mut others, 10, &["a", "c"]);
        others.release(Lsn::new(11), None);
        assert_eq!(counted(&shared).2, sum);
    }

    /// The connection is lost before the sink refuses the record of the first row.
    #[test]
    fn a_refusal_counts_also_if_its_transaction_is_read_again() {
        for before in [false, true] {
            let (shared, mut rows) = pending(true);
            let refused = EventPosition::in_first_epoch(10, 0);
            offer(&mut rows, 10, 0, "a");
            rows.keep_offered(false);
            rows.forget_from(refused);
            if before {
                rows.divert(refused);
            }
            offer(&mut rows, 10, 0, "a");
            rows.keep_acknowledged();
            rows.committed(Lsn::new(10));
            if !before {
                rows.divert(refused);
            }
            rows.release(Lsn::new(11), None);
            let (sent, diverted, _) = counted(&shared);
            assert_eq!((sent, diverted), (0, 1));
        }
    }

    /// The sink of an earlier process had these rows: they may be dead letters.
    #[test]
    fn rows_that_the_sink_had_are_counted_only_if_they_cannot_be_dead_letters() {
        for (writes_dead_letters, expected) in [(false, 1), (true, 0)] {
            let (shared, mut rows) = pending(writes_dead_letters);
            offer(&mut rows, 10, 0, "a");
            rows.keep_stored();
            rows.committed(Lsn::new(10));
            rows.release(Lsn::new(11), None);
            assert_eq!(counted(&shared).0, expected);
        }
    }

    #[test]
    fn sums_that_may_be_written_are_taken_again_as_they_were() {
        let (shared, mut rows) = pending(false);
        send(&mut rows, 10, &["a"]);
        rows.release(Lsn::new(11), None);
        let first = shared.take().expect("sums");
        send(&mut rows, 20, &["b"]);
        rows.release(Lsn::new(21), None);
        assert_eq!(shared.take().as_ref(), Some(&first));
        // The connection was lost, and the statement was not executed.
        shared.begin(Some(first.from));
        assert_eq!(shared.take().as_ref(), Some(&first));
        // The connection was lost, and the database has them.
        shared.begin(Some(first.to));
        let second = shared.take().expect("sums");
        assert_eq!((second.from, second.to), (first.to, Lsn::new(21)));
        assert_eq!(counted(&shared).0, 1);
    }

    /// Another relay has counted meanwhile, or the log is another one.
    #[test]
    fn sums_that_continue_nothing_are_forgotten() {
        let (shared, mut rows) = pending(false);
        send(&mut rows, 10, &["a"]);
        rows.release(Lsn::new(11), None);
        send(&mut rows, 20, &["b"]);
        shared.begin(Some(Lsn::new(15)));
        rows.connected();
        announce(&mut rows);
        assert_eq!(counted(&shared).0, 0);
        send(&mut rows, 20, &["b"]);
        rows.release(Lsn::new(21), None);
        assert_eq!(counted(&shared).0, 1);
        // Without the database nothing is counted.
        shared.begin(None);
        rows.connected();
        announce(&mut rows);
        send(&mut rows, 30, &["c"]);
        rows.release(Lsn::new(31), None);
        assert_eq!(counted(&shared).0, 0);
    }

    #[test]
    fn a_row_belongs_to_the_ten_minutes_of_its_age() {
        let (shared, mut rows) = pending(false);
        for (number, age) in [
            "2026-11-28 10:00:00+00",
            "2026-11-28 12:09:59.999999+02",
            "2026-11-28 10:10:00",
            "infinity",
            "1969-12-31 23:59:59+00",
        ]
        .iter()
        .enumerate()
        {
            offer_at(&mut rows, (10, number as u64), "a", age);
            rows.keep_offered(false);
        }
        rows.committed(Lsn::new(10));
        rows.release(Lsn::new(11), None);
        let counted = shared.take().expect("sums");
        let mut buckets: Vec<(i64, i64)> = counted
            .sums
            .iter()
            .map(|(bucket, sum)| (bucket.number, sum.sent.rows))
            .collect();
        buckets.sort_unstable();
        let first = 2_993_100;
        assert_eq!(buckets, [(-1, 1), (first, 2), (first + 1, 1)]);
        let names = counted.sums.keys().map(|bucket| bucket.columns.join(","));
        assert!(names.into_iter().all(|names| names == "id,created_at"));
        assert_eq!(
            counted.sums.keys().next().map(|bucket| bucket.relation),
            Some(ID)
        );
    }
}
