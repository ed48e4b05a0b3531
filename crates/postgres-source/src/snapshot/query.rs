//! The SQL that reads a snapshot: the rows and columns that the publication carries, in the order
//! to read them.

use walrelay_lsn::{RelationId, TypeOid};
use walrelay_pgoutput::{Column, ReplicaIdentity, encode};
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident};

use crate::TIMES;
use crate::catalog::Selection;
use crate::catalog::{ColumnFacts, PublishedTable, TableFacts, table, table_sql};
use crate::error::{PostgresError, SetupError, TableSetupError};
use crate::script;

/// Columns that hold the time when a polling relay sent the event; NULL before.
const SENT_COLUMNS: [&str; 2] = ["dispatched_at", "sent_at"];

/// A published table with its columns and row filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) name: TableName,
    facts: TableFacts,
    /// Indexes of the published columns, in order.
    published: Vec<usize>,
    row_filter: Option<String>,
}

impl Table {
    pub(super) fn relation_message(&self) -> Vec<u8> {
        let columns = self.columns().map(|column| Column {
            name: &column.name,
            is_key: column.is_key || self.facts.identity == "f",
            type_oid: TypeOid::new(column.type_oid),
            type_modifier: column.modifier,
        });
        let columns: Vec<_> = columns.collect();
        let identity = match self.facts.identity.as_str() {
            "n" => ReplicaIdentity::Nothing,
            "f" => ReplicaIdentity::Full,
            "i" => ReplicaIdentity::Index,
            _ => ReplicaIdentity::Default,
        };
        encode::relation(
            self.id(),
            &self.name.schema,
            &self.name.name,
            identity,
            columns.into_iter(),
        )
    }

    pub(super) fn id(&self) -> RelationId {
        RelationId::new(self.facts.oid)
    }

    fn columns(&self) -> impl Iterator<Item = &ColumnFacts> {
        let published = self.published.iter();
        published.filter_map(|index| self.facts.columns.get(*index))
    }

    fn has(&self, column: &str) -> bool {
        self.facts.columns.iter().any(|known| known.name == column)
    }

    /// Returns the columns that order the table's rows; empty if it has none.
    fn order<'t>(&'t self, selection: &'t Selection) -> Vec<&'t str> {
        if !selection.order.is_empty() {
            return selection.order.iter().map(String::as_str).collect();
        }
        let mut columns = self.facts.columns.iter();
        if let Some(identity) = columns.find(|column| column.identity) {
            return vec![&identity.name];
        }
        let time = selection.time.as_deref().into_iter().chain(TIMES);
        let time = time.into_iter().find(|column| self.has(column));
        // Rows with the same time usually belong to one transaction. A serial key orders them, a
        // random key does not.
        let integer = |name: &str| {
            let mut columns = self.facts.columns.iter();
            columns.any(|column| column.name == name && column.integer)
        };
        let key = self.facts.primary_key.iter().map(String::as_str);
        let key: Vec<_> = key.filter(|name| Some(*name) != time).collect();
        let serial = key.iter().all(|name| integer(name));
        let key = key.into_iter().filter(|_| serial);
        time.into_iter().chain(key).collect()
    }

    /// Returns the conditions on the table's rows.
    fn filters(&self, selection: &Selection) -> Result<Vec<String>, SetupError> {
        let mut filters: Vec<String> = self.row_filter.iter().cloned().collect();
        if let Some(filter) = &selection.filter {
            filters.push(filter.clone());
        } else if selection.unsent {
            let marked = selection.marked.as_ref();
            // A column of that name may be added for another purpose.
            let is_set =
                |column: &str| marked.is_none_or(|marked| marked.iter().any(|of| of == column));
            let mut columns = SENT_COLUMNS.into_iter();
            let sent = columns.find(|column| self.has(column) && is_set(column));
            let sent = sent.ok_or_else(|| no_rule(&self.name, selection))?;
            filters.push(format!("{} IS NULL", quote_ident(sent)));
        }
        Ok(filters)
    }

    /// Checks that no other relay may have marked the rows that the snapshot would send, by another column than this
    /// relay's.
    fn check_one_mark(&self, selection: &Selection) -> Result<(), SetupError> {
        let Some(marked) = &selection.marked else {
            return Ok(());
        };
        let is_unset = |column: &&str| self.has(column) && !marked.iter().any(|of| of == column);
        let is_inferred = selection.unsent && selection.filter.is_none();
        if is_inferred && SENT_COLUMNS.iter().any(is_unset) {
            return Err(SetupError::Table(TableSetupError::SnapshotRule {
                table: self.name.clone(),
                columns: "both dispatched_at and sent_at, and mark_sent sets one of them",
            }));
        }
        Ok(())
    }

    /// Returns a SELECT of the table's rows and of the columns that order them. `number`: the
    /// table's index in its group.
    ///
    /// # Errors
    /// If no column shows which rows to read, or in which order.
    fn select(&self, number: usize, selection: &Selection) -> Result<String, SetupError> {
        let filters = self.filters(selection)?;
        self.check_one_mark(selection)?;
        let order = self.order(selection);
        if order.is_empty() && !selection.unordered {
            return Err(SetupError::Table(TableSetupError::SnapshotOrder(
                self.name.clone(),
            )));
        }
        let order = order.iter().enumerate();
        let order =
            order.map(|(place, column)| format!("{} AS \"walrelay {place}\"", quote_ident(column)));
        let columns = self.columns().enumerate();
        let columns = columns
            .map(|(place, column)| format!("{} AS \"column {place}\"", quote_ident(&column.name)));
        let listed = [
            format!("{number} AS \"walrelay table\""),
            "tableoid AS \"walrelay oid\"".to_owned(),
            "ctid AS \"walrelay row\"".to_owned(),
        ];
        let listed: Vec<String> = listed.into_iter().chain(order).chain(columns).collect();
        // Each condition is on lines of its own, because it may end in a comment.
        let filters: Vec<String> = filters.iter().map(|sql| format!("(\n{sql}\n)")).collect();
        let filters = if filters.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", filters.join(" AND "))
        };
        Ok(format!(
            "SELECT {} FROM {}{filters}",
            listed.join(", "),
            // Child tables (inheritance) are published under their own names.
            script::rows_of(&self.name, self.facts.kind == "p"),
        ))
    }
}

/// Tables with the same columns and order, whose rows one statement reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) tables: Vec<Table>,
    /// A SELECT of the table's index in `tables`, then of the published columns.
    pub(super) sql: String,
}

impl Group {
    fn new(tables: Vec<Table>, selection: &Selection) -> Result<Self, SetupError> {
        let first = tables.first();
        let columns = first.map_or(0, |table| table.published.len());
        let orders = first.map_or(0, |table| table.order(selection).len());
        let selects = tables.iter().enumerate();
        let selects = selects.map(|(number, table)| table.select(number, selection));
        let selects = selects.collect::<Result<Vec<_>, _>>()?;
        let columns = (0..columns).map(|place| format!(", \"column {place}\""));
        let order = (0..orders).map(|place| format!("\"walrelay {place}\", "));
        // The row's location comes last and makes the order of a snapshot deterministic.
        let sql = format!(
            "SELECT \"walrelay table\"{} FROM ({}) AS \"rows\" ORDER BY {}\"walrelay oid\", \"walrelay row\"",
            columns.collect::<String>(),
            selects.join("\nUNION ALL "),
            order.collect::<String>(),
        );
        Ok(Self { tables, sql })
    }
}

/// Groups the tables that one statement can read.
pub(super) fn groups(tables: Vec<Table>, selection: &Selection) -> Result<Vec<Group>, SetupError> {
    let mut groups: Vec<Vec<Table>> = Vec::new();
    for table in tables {
        let group = groups.iter_mut().find(|group| {
            let first = group.first();
            first.is_some_and(|first| can_share_group(first, &table, selection))
        });
        match group {
            Some(group) => group.push(table),
            None => groups.push(vec![table]),
        }
    }
    let groups = groups.into_iter();
    groups.map(|tables| Group::new(tables, selection)).collect()
}

/// Returns whether one statement can read the rows of both tables: their columns and order are the
/// same.
fn can_share_group(one: &Table, other: &Table, selection: &Selection) -> bool {
    let shape = |table: &Table| -> Vec<(String, u32, i32)> {
        let columns = table.columns();
        columns
            .map(|column| (column.name.clone(), column.type_oid, column.modifier))
            .collect()
    };
    shape(one) == shape(other) && one.order(selection) == other.order(selection)
}

/// Queries the published tables. Those that do not exist any more are left out.
pub(super) async fn find_tables(
    session: &mut Session,
    published: &[PublishedTable],
) -> Result<Vec<Table>, Error> {
    let major = session.server_version().major;
    let statements: Vec<String> = published.iter().map(|of| table_sql(&of.table)).collect();
    let answers = session.query_all(&statements).await?;
    let found = published.iter().zip(answers);
    let found = found.filter_map(|(published, rows)| {
        let facts = table(&rows).filter(|facts| matches!(facts.kind.as_str(), "r" | "p"))?;
        let columns = facts.columns.iter().enumerate();
        let kept = columns.filter(|(_, column)| {
            let listed = published.columns.as_ref();
            // Since Postgres 18, `columns` lists the generated columns that are published.
            (major >= 18 || column.generated.is_none())
                && listed.is_none_or(|listed| listed.contains(&column.name))
        });
        Some(Table {
            name: published.table.clone(),
            published: kept.map(|(index, _)| index).collect(),
            facts,
            row_filter: published.row_filter.clone(),
        })
    });
    Ok(found.collect())
}

/// Returns the SQL condition for the rows of a table that no relay has sent.
pub(crate) async fn unsent_condition(
    session: &mut Session,
    table: &TableName,
    selection: &Selection,
) -> Result<String, PostgresError> {
    if let Some(filter) = &selection.filter {
        return Ok(filter.clone());
    }
    let published = PublishedTable {
        table: table.clone(),
        columns: None,
        row_filter: None,
    };
    let found = find_tables(session, &[published]).await?;
    let filters = found.first().map(|found| found.filters(selection));
    let filters = filters.transpose()?.unwrap_or_default();
    let condition = filters.into_iter().next();
    condition.ok_or_else(|| no_rule(table, selection).into())
}

/// Returns the error of a table without a column that shows which rows are sent.
fn no_rule(table: &TableName, selection: &Selection) -> SetupError {
    SetupError::Table(TableSetupError::SnapshotRule {
        table: table.clone(),
        columns: match selection.marked {
            Some(_) => "neither dispatched_at nor sent_at among the columns that mark_sent sets",
            None => "neither dispatched_at nor sent_at",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, columns: &[&str], integer_key: bool) -> Table {
        let columns = columns.iter().map(|name| ColumnFacts {
            name: (*name).to_owned(),
            type_oid: 25,
            modifier: -1,
            is_key: *name == "id",
            integer: *name == "id" && integer_key,
            ..ColumnFacts::default()
        });
        let columns: Vec<_> = columns.collect();
        Table {
            name: TableName {
                schema: "public".to_owned(),
                name: name.to_owned(),
            },
            published: (0..columns.len()).collect(),
            facts: TableFacts {
                columns,
                primary_key: vec!["id".to_owned()],
                ..TableFacts::default()
            },
            row_filter: None,
        }
    }

    #[test]
    fn rows_are_ordered_by_configured_columns_or_by_time() {
        let mut numbered = table("t", &["id", "created_at", "seq"], true);
        numbered.facts.columns[2].identity = true;
        let timed = table("t", &["id", "payload", "created_at"], false);
        let serial = table("t", &["id", "payload", "created_at"], true);
        let plain = table("t", &["id", "payload"], true);
        let default = Selection::default();
        assert_eq!(numbered.order(&default), ["seq"]);
        assert_eq!(timed.order(&default), ["created_at"]);
        assert_eq!(serial.order(&default), ["created_at", "id"]);
        assert_eq!(plain.order(&default), ["id"]);
        let configured = Selection {
            order: vec!["payload".to_owned()],
            ..Selection::default()
        };
        assert_eq!(timed.order(&configured), ["payload"]);
        let of_debezium = Selection {
            time: Some("payload".to_owned()),
            ..Selection::default()
        };
        assert_eq!(timed.order(&of_debezium), ["payload"]);
    }

    #[test]
    fn a_table_without_an_order_is_read_on_request_only() {
        let random = || vec![table("t", &["id", "payload"], false)];
        let mut selection = Selection::default();
        let refused = groups(random(), &selection).unwrap_err();
        assert!(
            matches!(
                refused,
                SetupError::Table(TableSetupError::SnapshotOrder(_))
            ),
            "{refused}"
        );
        let mut without_key = random();
        without_key[0].facts.primary_key.clear();
        assert!(groups(without_key, &selection).is_err());
        selection.unordered = true;
        assert_eq!(groups(random(), &selection).unwrap().len(), 1);
    }

    #[test]
    fn unsent_needs_a_column_or_a_condition() {
        let unsent = Selection {
            unsent: true,
            ..Selection::default()
        };
        let sent = table("t", &["id", "sent_at"], false);
        assert_eq!(sent.filters(&unsent).unwrap(), ["\"sent_at\" IS NULL"]);
        let plain = table("t", &["id"], false);
        let error = plain.filters(&unsent).unwrap_err();
        assert!(
            matches!(
                error,
                SetupError::Table(TableSetupError::SnapshotRule { .. })
            ),
            "{error}"
        );
        let both = table("t", &["id", "sent_at", "dispatched_at"], false);
        assert_eq!(
            both.filters(&unsent).unwrap(),
            ["\"dispatched_at\" IS NULL"]
        );
        for (marked, expected) in [("sent_at", Some("\"sent_at\" IS NULL")), ("status", None)] {
            let by_marks = Selection {
                marked: Some(vec![marked.to_owned()]),
                ..unsent.clone()
            };
            let filters = both.filters(&by_marks).ok();
            let found = filters.as_ref().map(|filters| filters[0].as_str());
            assert_eq!(found, expected, "{marked}");
            // Another relay may have marked rows.
            assert!(both.select(0, &by_marks).is_err(), "{marked}");
        }
        let filtered = Selection {
            filter: Some("id > 'a' -- all but the first".to_owned()),
            ..unsent
        };
        let mut both = table("t", &["id"], true);
        both.row_filter = Some("(payload <> ''::text)".to_owned());
        let sql = both.select(0, &filtered).unwrap();
        assert!(
            sql.ends_with(
                "FROM ONLY \"public\".\"t\" WHERE (\n(payload <> ''::text)\n) AND (\nid > 'a' -- all but the first\n)"
            ),
            "{sql}"
        );
    }

    #[test]
    fn tables_with_the_same_columns_are_read_in_one_order() {
        let tables = vec![
            table("a", &["id"], true),
            table("b", &["id", "more"], true),
            table("c", &["id"], true),
        ];
        let groups = groups(tables, &Selection::default()).unwrap();
        let names: Vec<Vec<&str>> = groups
            .iter()
            .map(|group| group.tables.iter().map(|of| &*of.name.name).collect())
            .collect();
        assert_eq!(names, [vec!["a", "c"], vec!["b"]]);
        assert_eq!(groups[0].sql.matches("UNION ALL").count(), 1);
    }
}
