use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    time::Duration,
};

use crate::Db;

mod read;

/// A committed row of the outbox, as it must arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Id of the row: the header `id` of the record.
    pub id: String,
    /// Topic that the row must arrive in.
    pub topic: String,
    /// Key of the record. Without a key no order is promised.
    pub key: Option<Vec<u8>>,
    /// Position in the commit order of its key.
    pub number: i64,
    /// Value of the record.
    pub payload: Option<Vec<u8>>,
}

/// A record that was read from the broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Delivered {
    /// The header `id`, if there is one and it is text.
    pub id: Option<String>,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    /// All headers in their order; names may repeat.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The time when the broker appended the record, in milliseconds since 1970 by its clock. Only
    /// for topics with `message.timestamp.type=LogAppendTime`.
    pub appended: Option<i64>,
    /// The producer's timestamp, in milliseconds since 1970. Only for topics that keep it.
    pub created: Option<i64>,
}

impl Delivered {
    /// Returns the value of the first header with this name; `None` if there is none, and if it is
    /// not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        str::from_utf8(value.as_deref()?).ok()
    }

    /// Returns the key; panics if there is none, and if it is not text.
    #[track_caller]
    pub fn key_text(&self) -> &str {
        text(self.key.as_deref())
    }

    /// Returns the value; panics if there is none, and if it is not text.
    #[track_caller]
    pub fn value_text(&self) -> &str {
        text(self.payload.as_deref())
    }
}

#[track_caller]
fn text(bytes: Option<&[u8]>) -> &str {
    str::from_utf8(bytes.expect("a key or value")).expect("text")
}

/// A record that differs from its row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Altered {
    pub id: String,
    pub position: String,
    /// The part that differs: "topic", "key" or "value".
    pub what: &'static str,
}

/// A record out of the order of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct OutOfOrder {
    pub id: String,
    pub position: String,
    pub number: i64,
    /// Number of the preceding record of the same key.
    pub after: i64,
}

/// Result of comparing the committed rows with the records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Verdict {
    pub committed: usize,
    pub delivered: usize,
    /// Records that repeat an earlier one. They are allowed: delivery is at least once.
    pub duplicates: usize,
    /// Ids of committed rows that did not arrive.
    pub lost: Vec<String>,
    /// Records without a committed row: their ids, or their positions if they have no id.
    pub phantom: Vec<String>,
    /// Records whose topic, key or value differs from their row's.
    pub altered: Vec<Altered>,
    /// Keys that occur in more than one partition, as `topic/key`.
    pub split: Vec<String>,
    /// First deliveries that arrived after a later row of the same key.
    pub reordered: Vec<OutOfOrder>,
    /// Repetitions that leave rows out. A relay that goes back repeats everything from there; so
    /// each record of a key is followed by its successor or by an earlier one, and the last is the
    /// latest. Requests of a killed relay that the broker still processes may show up here.
    pub ragged: Vec<OutOfOrder>,
}

impl Verdict {
    /// Returns whether there is nothing wrong; duplicates are allowed.
    pub fn is_clean(&self) -> bool {
        self.is_clean_but_for_ragged() && self.ragged.is_empty()
    }

    /// Returns whether there is nothing wrong; duplicates and [`ragged`](Self::ragged) repetitions
    /// are allowed.
    pub fn is_clean_but_for_ragged(&self) -> bool {
        self.lost.is_empty()
            && self.phantom.is_empty()
            && self.altered.is_empty()
            && self.split.is_empty()
            && self.reordered.is_empty()
    }

    /// Panics with a report, unless [`is_clean`](Self::is_clean).
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "the history is not clean: {self}");
    }

    /// Panics with a report, unless [`is_clean`](Self::is_clean) and nothing is repeated.
    #[track_caller]
    pub fn assert_nothing_repeated(&self) {
        self.assert_counts(self.committed, 0);
    }

    /// Panics with a report, unless [`is_clean`](Self::is_clean) with these numbers of committed
    /// rows and of duplicates.
    #[track_caller]
    pub fn assert_counts(&self, committed: usize, duplicates: usize) {
        self.assert_clean();
        let counts = (self.committed, self.duplicates);
        assert_eq!(counts, (committed, duplicates), "{self}");
    }

    /// Panics with a report, unless [`is_clean_but_for_ragged`](Self::is_clean_but_for_ragged).
    #[track_caller]
    pub fn assert_clean_but_for_ragged(&self) {
        assert!(
            self.is_clean_but_for_ragged(),
            "the history is not clean: {self}"
        );
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} rows committed, {} records read, {} of them duplicates",
            self.committed, self.delivered, self.duplicates
        )?;
        let altered = |it: &Altered| format!("{}: {} at {}", it.what, it.id, it.position);
        let order = |it: &OutOfOrder| {
            let OutOfOrder {
                id,
                position,
                number,
                after,
            } = it;
            format!("number {number} after {after}: {id} at {position}")
        };
        write_section(f, "lost", &self.lost, String::clone)?;
        write_section(f, "phantom", &self.phantom, String::clone)?;
        write_section(f, "altered", &self.altered, altered)?;
        write_section(f, "split over partitions", &self.split, String::clone)?;
        write_section(f, "first delivered out of order", &self.reordered, order)?;
        write_section(f, "ragged", &self.ragged, order)
    }
}

/// Writes a heading with the count, and the first few entries.
fn write_section<T>(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    list: &[T],
    show: impl Fn(&T) -> String,
) -> fmt::Result {
    const SHOWN: usize = 5;
    if list.is_empty() {
        return Ok(());
    }
    writeln!(f, "{what}: {}", list.len())?;
    for item in list.iter().take(SHOWN) {
        writeln!(f, "    {}", show(item))?;
    }
    if list.len() > SHOWN {
        writeln!(f, "    and {} more", list.len() - SHOWN)?;
    }
    Ok(())
}

/// Compares the committed rows with the records. The offsets decide about the order, not the order
/// of the slice. Panics if two committed rows have the same id, or two rows of a key the same
/// number: such data prove nothing.
pub fn check(committed: &[Committed], records: &[Delivered]) -> Verdict {
    let mut rows: HashMap<&str, &Committed> = HashMap::with_capacity(committed.len());
    let mut numbers = BTreeSet::new();
    for row in committed {
        assert!(
            rows.insert(&row.id, row).is_none(),
            "row {} is there twice",
            row.id
        );
        if row.key.is_some() {
            let unique = numbers.insert((&row.topic, &row.key, row.number));
            assert!(
                unique,
                "row {}: its key has number {} twice",
                row.id, row.number
            );
        }
    }
    let mut verdict = Verdict {
        committed: committed.len(),
        delivered: records.len(),
        ..Verdict::default()
    };

    let mut ordered: Vec<&Delivered> = records.iter().collect();
    ordered.sort_by_key(|record| (&record.topic, record.partition, record.offset));
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut by_key: BTreeMap<(&str, &[u8]), Vec<Pair<'_>>> = BTreeMap::new();
    for record in ordered {
        let row = record.id.as_deref().and_then(|id| rows.get(id).copied());
        let Some(row) = row else {
            verdict.phantom.push(match &record.id {
                Some(id) => format!("{id} at {}", position(record)),
                None => format!("no id at {}", position(record)),
            });
            continue;
        };
        if !seen.insert(&row.id) {
            verdict.duplicates += 1;
        }
        for (what, same) in [
            ("topic", row.topic == record.topic),
            ("key", row.key == record.key),
            ("value", row.payload == record.payload),
        ] {
            if !same {
                let (id, position) = (row.id.clone(), position(record));
                verdict.altered.push(Altered { id, position, what });
            }
        }
        // Group by the row's own topic and key: a record in the wrong topic is still out of its
        // order.
        if let Some(key) = row.key.as_deref() {
            by_key
                .entry((&row.topic, key))
                .or_default()
                .push((row, record));
        }
    }
    verdict.lost = committed
        .iter()
        .filter(|row| !seen.contains(&*row.id))
        .map(|row| row.id.clone())
        .collect();
    for ((topic, key), pairs) in &by_key {
        let elsewhere = |(_, record): &Pair<'_>| record.partition != pairs[0].1.partition;
        if pairs.iter().any(elsewhere) {
            let key = String::from_utf8_lossy(key);
            verdict.split.push(format!("{topic}/{key}"));
        }
        check_key(pairs, &mut verdict);
    }
    verdict
}

/// A record with the row that its id names.
type Pair<'a> = (&'a Committed, &'a Delivered);

/// Checks the order of the records of one key.
fn check_key(records: &[Pair<'_>], verdict: &mut Verdict) {
    // Rank only the rows that arrived: lost rows are reported elsewhere and are no reordering.
    let arrived: BTreeSet<i64> = records.iter().map(|(row, _)| row.number).collect();
    let ranks: HashMap<i64, usize> = arrived.iter().copied().zip(0..).collect();
    let mut seen = BTreeSet::new();
    let mut before: Option<i64> = None;
    let mut latest: Option<i64> = None;
    for (row, record) in records {
        let number = row.number;
        let first = seen.insert(number);
        let offence = |after: i64| OutOfOrder {
            id: row.id.clone(),
            position: position(record),
            number,
            after,
        };
        let next = before.map_or(0, |before| ranks[&before] + 1);
        if first && latest.is_some_and(|latest| latest > number) {
            verdict.reordered.push(offence(before.unwrap_or(number)));
        } else if ranks[&number] > next && !(first && latest == before) {
            // A jump. From the latest record to a new one it is not reported here: the row that was
            // left out arrives later and is reported as reordered.
            verdict.ragged.push(offence(before.unwrap_or(number)));
        }
        before = Some(number);
        latest = latest.max(before);
    }
    if let (Some((row, record)), Some(latest)) = (records.last(), latest)
        && row.number != latest
    {
        // A late first delivery is reported already.
        let position = position(record);
        let mut reordered = verdict.reordered.iter();
        if reordered.all(|reported| reported.position != position) {
            verdict.ragged.push(OutOfOrder {
                id: row.id.clone(),
                position,
                number: row.number,
                after: latest,
            });
        }
    }
}

fn position(record: &Delivered) -> String {
    format!("{}[{}]@{}", record.topic, record.partition, record.offset)
}

/// Both sides of the comparison, as they were read.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Rows of the outbox table.
    pub committed: Vec<Committed>,
    /// Records of the broker.
    pub records: Vec<Delivered>,
}

impl History {
    /// Reads the outbox table that a [`Workload`](crate::Workload) wrote, then all topics whose
    /// names begin with `topic_prefix`: from the beginning until every committed id was read and
    /// the end at that moment is reached, or no record was new for `limit`. What is missing then
    /// is reported by [`check`].
    ///
    /// Call it when nothing more is being written.
    #[track_caller]
    pub fn collect(
        db_url: &str,
        table: &str,
        bootstrap_servers: &str,
        topic_prefix: &str,
        limit: Duration,
    ) -> Self {
        let committed = Self::committed(db_url, table, topic_prefix);
        let records = Self::records(bootstrap_servers, topic_prefix, committed.len(), limit);
        Self { committed, records }
    }

    /// Reads the rows of an outbox table that a [`Workload`](crate::Workload) wrote. A topic is the
    /// prefix and the aggregate type.
    #[track_caller]
    pub fn committed(db_url: &str, table: &str, topic_prefix: &str) -> Vec<Committed> {
        let sql = format!(
            "SELECT id::text, aggregatetype::text, aggregateid::text, \
             (payload->>'number')::bigint, payload::text FROM {table}"
        );
        Db::connect(db_url)
            .query(&sql, &[])
            .iter()
            .map(|row| Committed {
                id: row.get(0),
                topic: format!("{topic_prefix}{}", row.get::<_, &str>(1)),
                key: row.get::<_, Option<&str>>(2).map(Into::into),
                number: row.get(3),
                payload: row.get::<_, Option<&str>>(4).map(Into::into),
            })
            .collect()
    }

    /// Reads all topics whose names begin with `topic_prefix`, until `distinct` different ids were
    /// read, or no record was new for `limit`; in both cases to the end at that moment. With 0 ids
    /// it reads what is there now.
    #[track_caller]
    pub fn records(
        bootstrap_servers: &str,
        topic_prefix: &str,
        distinct: usize,
        limit: Duration,
    ) -> Vec<Delivered> {
        read::records(bootstrap_servers, topic_prefix, distinct, limit)
    }

    /// Returns the number of records in all topics whose names begin with `topic_prefix`; `None` if
    /// the broker does not answer now. For
    /// [`eventually_while_moving`](crate::eventually_while_moving).
    pub fn count(bootstrap_servers: &str, topic_prefix: &str) -> Option<i64> {
        read::count(bootstrap_servers, topic_prefix)
    }

    /// Compares both sides.
    pub fn check(&self) -> Verdict {
        check(&self.committed, &self.records)
    }
}

#[cfg(test)]
mod tests;
