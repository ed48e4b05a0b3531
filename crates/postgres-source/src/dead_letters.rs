//! Rows whose events have an open dead letter. Such an event is only in the topic of dead letters,
//! an oversize one without its value, so the row is not marked as sent, and not deleted.
//!
//! A dead letter is acknowledged before its transaction is confirmed. So the topic, when it is read
//! after a position is confirmed, has the dead letters of all rows before it
//! (docs/adr/0037-a-row-with-an-open-dead-letter-is-kept.md).

use std::cell::RefCell;
use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use tokio::task::{JoinHandle, spawn_blocking};
use walrelay_relay::TableName;
use walrelay_sink::{EventPosition, in_current_span, lock};
use walrelay_sink_kind::dead_letters::{DeadLetterEvent, DeadLetterEvents, Outcome, ReadOpen};
use walrelay_walsender::{quote_ident, quote_literal};

use super::script::array;

/// Open dead letters of one table, at most: each is a part of every statement.
const MOST: usize = 100_000;
/// Those with the resolved ones, at most, whose number only grows: 40 MB of a statement.
const MOST_KNOWN: usize = 1_000_000;
/// Bytes of the ids of both, at most: the server keeps several copies of a statement, which may have 1 GiB.
const MOST_BYTES: usize = 64 << 20;

/// The reason why rows are not distinguished from those with an open dead letter. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum DeadLettersError {
    /// The topic cannot be read.
    #[error("the open dead letters cannot be read")]
    Read(#[source] Box<dyn Error + Send + Sync>),
    /// Its open dead letters name no row.
    #[error("table {table} has {open} open dead letters, and [router] names no id of its events")]
    NoId {
        /// The table.
        table: TableName,
        /// The number of its open dead letters.
        open: usize,
    },
    /// It has more dead letters than one statement compares with.
    #[error(
        "table {table} has {open} dead letters to compare with: with more than {most} no row is compared"
    )]
    TooMany {
        /// The table.
        table: TableName,
        /// The number of its dead letters.
        open: usize,
        /// The most that are compared.
        most: usize,
    },
    /// Open dead letters name no row that could be marked.
    #[error(
        "{open} open dead letters have no id of their event, or are of a table that is not among [source] tables: nothing \
         tells their rows"
    )]
    NoRow {
        /// The number of these dead letters.
        open: usize,
    },
    /// Open dead letters are of another cluster, whose rows may have the same ids.
    #[error(
        "{open} open dead letters of this slot's name were read from another database cluster: nothing tells whether they \
         have rows here"
    )]
    OtherCluster {
        /// The number of these dead letters.
        open: usize,
    },
    /// Several rows have the id of an open dead letter.
    #[error(
        "{ids} ids of open dead letters of table {table} are those of several rows: nothing tells which of them was not \
         sent"
    )]
    SeveralRows {
        /// The table.
        table: TableName,
        /// The number of these ids.
        ids: u64,
    },
    /// The ids of its dead letters are longer than one statement may be.
    #[error(
        "the ids of {open} dead letters of table {table} have {bytes} bytes: with more than {most} no row is compared"
    )]
    TooLong {
        /// The table.
        table: TableName,
        /// The number of its dead letters.
        open: usize,
        /// The bytes of their ids.
        bytes: usize,
        /// The most that are compared.
        most: usize,
    },
}

/// The dead letters that a statement compares rows with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    All,
    /// Those whose events have no id: the caller compares the ids of rows that it has read.
    WithoutId,
}

/// The origin of a dead letter whose row has a stored key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LetterOrigin {
    /// The event's position.
    pub(super) event: EventPosition,
    /// The cluster that the event was read from; empty if its dead letter names none.
    pub(super) system: String,
    /// The store that has the dead letter; empty if an earlier version stored the key.
    pub(super) store: String,
}

/// The result of a read.
type Read = Result<DeadLetterEvents, Box<dyn Error + Send + Sync>>;

/// The open dead letters of a slot, as far as they were read.
#[derive(Default)]
pub struct DeadLetters {
    /// `None`: no dead letter can be read.
    read: Option<Arc<Mutex<ReadOpen>>>,
    /// The store that they are read from.
    store: String,
    /// The column with the id of events.
    id: Option<String>,
    /// `schema.table` of every configured table and of messages.
    named: HashSet<String>,
    known: RefCell<DeadLetterEvents>,
    /// A read that was not waited for to its end. A thread works on it.
    reading: RefCell<Option<JoinHandle<Read>>>,
}

// Not derived: ids are values of rows.
impl fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetters").finish_non_exhaustive()
    }
}

impl DeadLetters {
    /// Creates an empty list. `id`: the column with the id of events. `named`: the tables that are
    /// configured, and the name that dead letters of messages have.
    pub fn new(
        read: ReadOpen,
        id: Option<String>,
        named: impl IntoIterator<Item = TableName>,
    ) -> Self {
        Self {
            read: Some(Arc::new(Mutex::new(read))),
            id,
            named: named.into_iter().map(|table| table.to_string()).collect(),
            ..Self::default()
        }
    }

    /// Reads the open dead letters that there are now. If the future is dropped before its end, the next call
    /// waits for the read that goes on, because each would keep a thread.
    pub async fn read(&self) -> Result<(), DeadLettersError> {
        // It began before this call, so it may lack dead letters of now.
        let _ = self.finish_reading().await;
        self.read_on().await
    }

    /// Waits for the read that goes on, or else reads the open dead letters that there are now.
    pub(super) async fn read_on(&self) -> Result<(), DeadLettersError> {
        if self.reading.borrow().is_none() {
            let Some(read) = &self.read else {
                return Ok(());
            };
            let read = Arc::clone(read);
            let reading = spawn_blocking(in_current_span(move || (*lock(&read))()));
            *self.reading.borrow_mut() = Some(reading);
        }
        self.finish_reading().await
    }

    async fn finish_reading(&self) -> Result<(), DeadLettersError> {
        let read = poll_fn(|context| match &mut *self.reading.borrow_mut() {
            Some(reading) => Pin::new(reading).poll(context).map(Some),
            None => Poll::Ready(None),
        });
        let Some(open) = read.await else {
            return Ok(());
        };
        *self.reading.borrow_mut() = None;
        let open = open.unwrap_or_else(|panicked| Err(panicked.into()));
        *self.known.borrow_mut() = open.map_err(DeadLettersError::Read)?;
        Ok(())
    }

    /// Returns a condition for the table's rows of the open dead letters that were read. `None`: there
    /// are none.
    pub(super) fn rows(&self, table: &TableName) -> Result<Option<String>, DeadLettersError> {
        self.open_rows(table, Compared::All)
    }

    /// Writes the condition of [`rows`](Self::rows) for a part of the dead letters.
    pub(super) fn open_rows(
        &self,
        table: &TableName,
        compared: Compared,
    ) -> Result<Option<String>, DeadLettersError> {
        self.condition(self.known.borrow().open.iter(), table, MOST, compared)
    }

    /// Checks that no open dead letter names another cluster than these.
    ///
    /// # Errors
    /// [`DeadLettersError::OtherCluster`].
    pub(super) fn check_clusters(&self, systems: &[String]) -> Result<(), DeadLettersError> {
        let known = self.known.borrow();
        let other = |event: &&DeadLetterEvent| {
            let named = event.system.as_deref();
            named.is_some_and(|named| systems.iter().all(|system| system != named))
        };
        match known.open.iter().filter(other).count() {
            0 => Ok(()),
            open => Err(DeadLettersError::OtherCluster { open }),
        }
    }

    /// Returns a condition for the table's rows that have the ids of open dead letters, to mark them: no other row
    /// fulfils it. `None`: there are none.
    ///
    /// # Errors
    /// [`DeadLettersError::NoRow`] if an open dead letter names no known table, or is of this one and has no id.
    pub(super) fn named_rows(&self, table: &TableName) -> Result<Option<String>, DeadLettersError> {
        let (known, name) = (self.known.borrow(), table.to_string());
        let without_row = known.open.iter().filter(|event| match &event.table {
            Some(of) if *of == name => event.id.is_none(),
            // Messages have no row.
            Some(of) => !self.named.contains(of),
            None => true,
        });
        let open = without_row.count();
        if open > 0 && self.id.is_some() {
            return Err(DeadLettersError::NoRow { open });
        }
        self.condition(known.open.iter(), table, MOST, Compared::All)
    }

    /// Returns the column with the id of events, quoted.
    pub(super) fn id_column(&self) -> Option<String> {
        self.id.as_deref().map(quote_ident)
    }

    /// Returns a condition for the table's rows of all dead letters that were read.
    pub(super) fn known_rows(&self, table: &TableName) -> Result<Option<String>, DeadLettersError> {
        let known = self.known.borrow();
        let all = known.open.iter().chain(&known.resolved);
        self.condition(all, table, MOST_KNOWN, Compared::All)
    }

    /// Returns a condition for the table's rows of resolved dead letters that have no open one, too.
    pub(super) fn resolved_rows(
        &self,
        table: &TableName,
        compared: Compared,
    ) -> Result<Option<String>, DeadLettersError> {
        let known = self.known.borrow();
        let resolved = self.condition(known.resolved.iter(), table, MOST_KNOWN, compared)?;
        let open = self.condition(known.open.iter(), table, MOST, compared)?;
        Ok(resolved.map(|resolved| match open {
            Some(open) => format!("({resolved} AND ({open}) IS NOT TRUE)"),
            None => resolved,
        }))
    }

    /// Returns those of `ids` that have open dead letters of the table, and those that have only resolved ones.
    pub(super) fn named<'a>(
        &self,
        table: &TableName,
        ids: &HashSet<&'a str>,
    ) -> (HashSet<&'a str>, HashSet<&'a str>) {
        let known = self.known.borrow();
        let of_table = |events: &[DeadLetterEvent]| -> HashSet<&'a str> {
            let ids = self.events_of(events.iter(), table).filter_map(|event| {
                let id = String::from_utf8_lossy(event.id.as_deref()?);
                ids.get(&*id).copied()
            });
            ids.collect()
        };
        let (open, resolved) = (of_table(&known.open), of_table(&known.resolved));
        let resolved = resolved.difference(&open).copied().collect();
        (open, resolved)
    }

    /// Returns the events of a table.
    fn events_of<'a>(
        &self,
        events: impl Iterator<Item = &'a DeadLetterEvent>,
        table: &TableName,
    ) -> impl Iterator<Item = &'a DeadLetterEvent> {
        let name = table.to_string();
        // A name that is not configured may be a former one of this table.
        events.filter(move |event| {
            let of = event.table.as_ref();
            of.is_none_or(|of| *of == name || !self.named.contains(of))
        })
    }

    fn condition<'a>(
        &self,
        events: impl Iterator<Item = &'a DeadLetterEvent>,
        table: &TableName,
        most: usize,
        compared: Compared,
    ) -> Result<Option<String>, DeadLettersError> {
        let events = events.filter(|event| compared == Compared::All || event.id.is_none());
        let of_table: Vec<_> = self.events_of(events, table).collect();
        let (open, table) = (of_table.len(), table.clone());
        if open == 0 {
            return Ok(None);
        }
        if open > most {
            return Err(DeadLettersError::TooMany { table, open, most });
        }
        let Some(id) = self.id.as_deref().map(quote_ident) else {
            return Err(DeadLettersError::NoId { table, open });
        };
        let bytes = of_table.iter().filter_map(|open| open.id.as_deref());
        let bytes = bytes.map(<[u8]>::len).sum();
        if bytes > MOST_BYTES {
            return Err(DeadLettersError::TooLong {
                table,
                open,
                bytes,
                most: MOST_BYTES,
            });
        }
        let ids = of_table.iter().filter_map(|open| open.id.as_deref());
        let ids: Vec<_> = ids.map(String::from_utf8_lossy).collect();
        // As pgoutput sends the column: by its type's output function. One constant, so that the server parses it
        // fast, and hashes it.
        let mut conditions = vec![format!(
            "pg_catalog.format('%s', {id}) = ANY ({}::text[])",
            quote_literal(&array(ids.iter().map(AsRef::as_ref)))
        )];
        let unnamed = of_table.iter().filter(|open| open.id.is_none());
        let xids = unnamed.filter_map(|open| open.xid);
        let xids: Vec<String> = xids.map(|xid| quote_literal(&xid.to_string())).collect();
        if ids.len() < open {
            conditions.push(format!("{id} IS NULL"));
        }
        if !xids.is_empty() {
            conditions.push(format!("xmin::text IN ({})", xids.join(", ")));
        }
        Ok(Some(format!("({})", conditions.join(" OR "))))
    }

    /// Sets the store that the dead letters are read from, for example `kafka dead.letters`.
    #[must_use]
    pub fn in_store(mut self, store: String) -> Self {
        self.store = store;
        self
    }

    /// Returns the store that the dead letters are read from; empty if none can be read.
    pub(super) fn store(&self) -> &str {
        &self.store
    }

    /// Returns how a dead letter was resolved, as far as was read; `None` if it is open, or in another store. A dead
    /// letter of another cluster, whose slot has the same name, is another one.
    pub(super) fn outcome(&self, origin: &LetterOrigin) -> Option<Outcome> {
        if !origin.store.is_empty() && origin.store != self.store {
            return None;
        }
        let system = Some(&*origin.system).filter(|system| !system.is_empty());
        let key = (origin.event, system.map(Arc::from));
        self.known.borrow().outcomes.get(&key).copied()
    }

    /// Returns a number that distinguishes the resolutions that were read from others.
    pub(super) fn digest(&self) -> u64 {
        let known = self.known.borrow();
        let hashed = known.outcomes.iter().map(|((event, system), outcome)| {
            let mut hasher = DefaultHasher::new();
            (
                event.epoch,
                event.lsn,
                event.row,
                system,
                *outcome == Outcome::Redriven,
            )
                .hash(&mut hasher);
            hasher.finish()
        });
        // The order of the entries is another one each time.
        hashed.fold(0, u64::wrapping_add)
    }

    /// Returns the number of open dead letters that were read.
    pub fn open(&self) -> usize {
        self.known.borrow().open.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn dead_letters(id: Option<&str>, open: &[(&str, Option<&str>)]) -> DeadLetters {
        let open = open.iter().map(|(table, id)| DeadLetterEvent {
            system: None,
            table: Some((*table).to_owned()),
            id: id.map(|id| id.as_bytes().to_vec()),
            xid: Some(751),
        });
        DeadLetters {
            id: id.map(str::to_owned),
            named: ["public.outbox", "public.other"].map(str::to_owned).into(),
            known: RefCell::new(DeadLetterEvents {
                open: open.collect(),
                ..DeadLetterEvents::default()
            }),
            ..DeadLetters::default()
        }
    }

    #[tokio::test]
    async fn a_read_that_is_not_waited_for_is_not_begun_a_second_time() {
        let (go_on, blocked) = mpsc::channel::<()>();
        let reads = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&reads);
        let read: ReadOpen = Box::new(move || {
            *lock(&counted) += 1;
            // An error tells that the sender is gone.
            let _ = blocked.recv();
            Ok(DeadLetterEvents::default())
        });
        let dead_letters = DeadLetters::new(read, None, []);
        for _ in 0..3 {
            let read = timeout(Duration::from_millis(20), dead_letters.read_on()).await;
            assert!(read.is_err(), "a read ends before it may");
        }
        drop(go_on);
        dead_letters.read_on().await.expect("a read");
        assert_eq!(*lock(&reads), 1);
        // A read that is asked for is another one.
        dead_letters.read().await.expect("a read");
        assert_eq!(*lock(&reads), 2);
    }

    #[test]
    fn rows_are_compared_with_more_resolved_dead_letters_than_open_ones() {
        let events = (0..=MOST).map(|number| DeadLetterEvent {
            system: None,
            table: Some("public.outbox".to_owned()),
            id: Some(number.to_string().into_bytes()),
            xid: None,
        });
        let events: Vec<_> = events.collect();
        let outbox = TableName::new("public", "outbox");
        let mut known = dead_letters(Some("id"), &[]);
        known.known.get_mut().resolved.clone_from(&events);
        for condition in [
            known.resolved_rows(&outbox, Compared::All),
            known.known_rows(&outbox),
        ] {
            let condition = condition.expect("a condition");
            assert!(condition.is_some_and(|sql| sql.contains("\"100000\"")));
        }
        known.known.get_mut().open = events;
        let open = known.rows(&outbox);
        assert!(matches!(
            open,
            Err(DeadLettersError::TooMany { most: MOST, .. })
        ));
    }

    #[test]
    fn dead_letters_with_long_ids_are_compared_up_to_a_number_of_bytes() {
        let outbox = TableName::new("public", "outbox");
        let with = |count: usize| {
            let event = |_| DeadLetterEvent {
                system: None,
                table: Some("public.outbox".to_owned()),
                id: Some(vec![b'x'; 1 << 20]),
                xid: None,
            };
            let mut known = dead_letters(Some("id"), &[]);
            known.known.get_mut().resolved = (0..count).map(event).collect();
            known.resolved_rows(&outbox, Compared::All)
        };
        assert!(with(64).is_ok_and(|condition| condition.is_some()));
        let error = with(65).expect_err("too long");
        assert_eq!(
            error.to_string(),
            "the ids of 65 dead letters of table public.outbox have 68157440 bytes: with more than 67108864 no row is \
             compared"
        );
    }

    #[test]
    fn a_statement_of_an_audit_has_no_ids_of_dead_letters() {
        let outbox = TableName::new("public", "outbox");
        let letters = [
            ("public.outbox", Some("open")),
            ("public.outbox", Some("both")),
            ("public.other", Some("other")),
        ];
        let mut known = dead_letters(Some("id"), &letters);
        let of = |id: Option<&str>| DeadLetterEvent {
            system: None,
            table: Some("public.outbox".to_owned()),
            id: id.map(|id| id.as_bytes().to_vec()),
            xid: Some(752),
        };
        let events = known.known.get_mut();
        events.resolved = ["resolved", "both"].map(|id| of(Some(id))).into();
        let rows = known.open_rows(&outbox, Compared::WithoutId);
        assert_eq!(rows.expect("no condition"), None);
        let rows = known.resolved_rows(&outbox, Compared::WithoutId);
        assert_eq!(rows.expect("no condition"), None);
        let ids = HashSet::from(["open", "both", "resolved", "other", "never dead"]);
        let (open, resolved) = known.named(&outbox, &ids);
        assert_eq!(open, HashSet::from(["open", "both"]));
        assert_eq!(resolved, HashSet::from(["resolved"]));

        // Without an id, the transaction is compared in any case.
        known.known.get_mut().resolved.push(of(None));
        let rows = known.resolved_rows(&outbox, Compared::WithoutId);
        let rows = rows.expect("a condition").expect("a condition");
        assert!(
            rows.contains("'752'") && !rows.contains("resolved"),
            "{rows}"
        );
    }

    #[test]
    fn a_resolution_counts_for_the_dead_letter_of_its_cluster_and_store_alone() {
        let event = EventPosition::in_first_epoch(8, 0);
        let known = DeadLetters::default().in_store("kafka dead".to_owned());
        known.known.borrow_mut().outcomes = HashMap::from([
            ((event, Some("7".into())), Outcome::Redriven),
            ((event, None), Outcome::Dropped),
        ]);
        let outcome = |system: &str, store: &str| {
            let (system, store) = (system.to_owned(), store.to_owned());
            known.outcome(&LetterOrigin {
                event,
                system,
                store,
            })
        };
        assert_eq!(outcome("7", "kafka dead"), Some(Outcome::Redriven));
        assert_eq!(outcome("8", "kafka dead"), None);
        assert_eq!(outcome("7", "redis dead"), None);
        // Keys and dead letters of earlier versions name neither.
        assert_eq!(outcome("", ""), Some(Outcome::Dropped));
    }

    #[test]
    fn rows_are_marked_only_by_the_id_and_the_table() {
        let outbox = TableName::new("public", "outbox");
        let of = |open: &[_]| dead_letters(Some("id"), open).named_rows(&outbox);
        let (known, other) = (("public.outbox", Some("7")), ("public.other", Some("8")));
        let rows = of(&[known, other]).expect("a condition");
        let seven = r#"(pg_catalog.format('%s', "id") = ANY ('{"7"}'::text[]))"#;
        assert_eq!(rows.as_deref(), Some(seven));
        assert_eq!(of(&[other]).expect("no condition"), None);
        for unknown in [("public.outbox", None), ("public.former", Some("7"))] {
            let rows = of(&[known, unknown]);
            assert!(matches!(rows, Err(DeadLettersError::NoRow { open: 1 })));
        }
    }

    #[test]
    fn rows_are_told_by_the_id_or_else_by_the_transaction() {
        let outbox = TableName::new("public", "outbox");
        let of = |id, open: &[_]| dead_letters(id, open).rows(&outbox).expect("a condition");
        assert_eq!(of(Some("id"), &[]), None);
        assert_eq!(of(None, &[("public.other", Some("7"))]), None);
        assert_eq!(
            of(Some("id"), &[("public.outbox", Some("it's"))]).as_deref(),
            Some(r#"(pg_catalog.format('%s', "id") = ANY ('{"it''s"}'::text[]))"#)
        );
        assert_eq!(
            of(Some("id"), &[("public.outbox", None)]).as_deref(),
            Some(
                "(pg_catalog.format('%s', \"id\") = ANY ('{}'::text[]) OR \"id\" IS NULL OR \
                 xmin::text IN ('751'))"
            )
        );
        let former = r#"(pg_catalog.format('%s', "id") = ANY ('{"7"}'::text[]))"#;
        assert_eq!(
            of(Some("id"), &[("public.former", Some("7"))]).as_deref(),
            Some(former)
        );
        let unknown = dead_letters(None, &[("public.outbox", None)]);
        assert!(matches!(
            unknown.rows(&outbox),
            Err(DeadLettersError::NoId { open: 1, .. })
        ));
    }
}
