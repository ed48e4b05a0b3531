use std::collections::BTreeMap;

use walrelay_lsn::Lsn;

use crate::Db;

/// A row of an outbox as the WAL has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRow {
    /// Position at which the commit record begins. A slot whose confirmed position is greater is
    /// never sent the row again, however it starts (`SnapBuildXactNeedsSkip` compares with this
    /// position).
    pub commit: Lsn,
    /// Value of the first column.
    pub id: String,
    /// All columns by name, in the server's text format. Empty after [`CommitLog::ids`].
    pub columns: BTreeMap<String, Option<Vec<u8>>>,
}

/// Reads the order of commits from the WAL by a logical slot of the test's own. Positions are
/// exact, also for rows that were changed, deleted or truncated since.
///
/// It reads `pgoutput` through an SQL function, shares no code with the relay, and has a slot and a
/// publication of its own, which it drops with itself.
#[derive(Debug)]
pub struct CommitLog {
    url: String,
    name: String,
}

impl CommitLog {
    /// Starts to record commits to these tables, which must exist.
    #[track_caller]
    pub fn start(url: &str, name: &str, tables: &[&str], root: bool) -> Self {
        Self::create(url, name, tables, root, "")
    }

    /// Starts with a failover slot, of which standbys have a copy (Postgres 17 and newer).
    #[track_caller]
    pub fn start_for_failover(url: &str, name: &str, tables: &[&str]) -> Self {
        Self::create(url, name, tables, false, ", failover => true")
    }

    /// Continues with the slot's copy on another server: a standby that was promoted.
    pub fn follow(&mut self, url: &str) {
        url.clone_into(&mut self.url);
    }

    #[track_caller]
    fn create(url: &str, name: &str, tables: &[&str], root: bool, options: &str) -> Self {
        let db = Db::connect(url);
        db.batch(&format!(
            "CREATE PUBLICATION {name} FOR TABLE {} \
             WITH (publish = 'insert', publish_via_partition_root = {root})",
            tables.join(", ")
        ));
        db.query(
            &format!("SELECT FROM pg_create_logical_replication_slot($1, 'pgoutput'{options})"),
            &[&name],
        );
        Self {
            url: url.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Returns the positions and ids of the rows committed since the start, in commit order. The
    /// first column must be the id, of at most 60 bytes.
    #[track_caller]
    pub fn ids(&self) -> Vec<LoggedRow> {
        // 80 bytes contain a Begin message, and an Insert message up to the end of the id.
        self.read("substring(data from 1 for 80)", false)
    }

    /// Returns all columns of the rows committed since the start, in commit order.
    #[track_caller]
    pub fn rows(&self) -> Vec<LoggedRow> {
        self.read("data", true)
    }

    #[track_caller]
    fn read(&self, data: &str, whole: bool) -> Vec<LoggedRow> {
        let name = &self.name;
        let messages = Db::connect(&self.url).query(
            &format!(
                "SELECT {data} FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, \
                 'proto_version', '1', 'publication_names', '{name}')"
            ),
            &[name],
        );
        let mut rows = Vec::new();
        let mut commit = Lsn::ZERO;
        let mut names: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for message in &messages {
            let bytes: &[u8] = message.get(0);
            let mut cursor = Cursor(bytes);
            // https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
            match cursor.u8() {
                b'B' => commit = Lsn::new(cursor.u64()),
                b'R' if whole => {
                    let relation = cursor.u32();
                    let _ = (cursor.text(), cursor.text(), cursor.u8());
                    let count = cursor.u16();
                    let columns = (0..count).map(|_| {
                        cursor.u8();
                        let name = cursor.text();
                        let _ = (cursor.u32(), cursor.u32());
                        name
                    });
                    names.insert(relation, columns.collect());
                }
                b'I' => {
                    let relation = cursor.u32();
                    assert_eq!(cursor.u8(), b'N', "a new row follows");
                    let count = cursor.u16();
                    let first = cursor.value().expect("an id is not NULL");
                    let id = String::from_utf8(first.clone()).expect("an id is text");
                    let mut columns = BTreeMap::new();
                    if whole {
                        let names = &names[&relation];
                        columns.insert(names[0].clone(), Some(first));
                        for name in &names[1..usize::from(count)] {
                            columns.insert(name.clone(), cursor.value());
                        }
                    }
                    rows.push(LoggedRow {
                        commit,
                        id,
                        columns,
                    });
                }
                b'C' | b'R' | b'Y' | b'O' => {}
                other => panic!("an unexpected message: {:?}", char::from(other)),
            }
        }
        rows
    }
}

impl Drop for CommitLog {
    fn drop(&mut self) {
        // A slot that is left would keep WAL of a server that other tests use. If the server is
        // gone, so is the slot.
        if let Ok(db) = Db::try_connect(&self.url) {
            let name = &self.name;
            let _ = db.try_query("SELECT pg_drop_replication_slot($1)", &[name]);
            let _ = db.try_batch(&format!("DROP PUBLICATION IF EXISTS {name}"));
        }
    }
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().expect("a whole message");
        self.0 = rest;
        *head
    }

    fn u8(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0);
        let end = end.expect("a name ends with a zero");
        let text = String::from_utf8(self.0[..end].to_vec()).expect("a name is text");
        self.0 = &self.0[end + 1..];
        text
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        match self.u8() {
            b'n' => None,
            b't' => {
                let length = self.u32() as usize;
                let value = self.0[..length].to_vec();
                self.0 = &self.0[length..];
                Some(value)
            }
            other => panic!("a value of kind {:?} in a new row", char::from(other)),
        }
    }
}
