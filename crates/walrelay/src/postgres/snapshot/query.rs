//! Which rows a snapshot has: what the publication carries of the tables, as statements in the order to read.

use serde::Deserialize;
use walrelay_lsn::{RelationId, TypeOid};
use walrelay_pgoutput::{Column, ReplicaIdentity, encode};
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_ident, quote_literal};

use super::Selection;
use crate::postgres::TIMES;
use crate::postgres::catalog::PublishedTable;
use crate::postgres::error::{PostgresError, SetupError};

/// Columns that hold when a relay has sent the event, NULL before.
const SENT: [&str; 2] = ["dispatched_at", "sent_at"];

/// A table as the catalogs have it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Relation {
    oid: u32,
    /// It has partitions, whose rows are read under its name.
    partitioned: bool,
    /// `pg_class.relreplident`.
    identity: String,
    columns: Vec<RelationColumn>,
    /// Names of the primary key's columns.
    primary_key: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct RelationColumn {
    name: String,
    type_oid: u32,
    modifier: i32,
    /// Of the replica identity.
    is_key: bool,
    generated: bool,
    integer: bool,
}

/// A published table and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    name: TableName,
    relation: Relation,
    /// The columns that are sent, in order.
    sent: Vec<usize>,
    row_filter: Option<String>,
}

impl Table {
    /// Its Relation message.
    pub(super) fn announce(&self) -> Vec<u8> {
        let columns = self.columns().map(|column| Column {
            name: &column.name,
            is_key: column.is_key || self.relation.identity == "f",
            type_oid: TypeOid::new(column.type_oid),
            type_modifier: column.modifier,
        });
        let columns: Vec<_> = columns.collect();
        let identity = match self.relation.identity.as_str() {
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

    pub(super) fn name(&self) -> &TableName {
        &self.name
    }

    pub(super) fn id(&self) -> RelationId {
        RelationId::new(self.relation.oid)
    }

    fn columns(&self) -> impl Iterator<Item = &RelationColumn> {
        let sent = self.sent.iter();
        sent.filter_map(|index| self.relation.columns.get(*index))
    }

    fn has(&self, column: &str) -> bool {
        self.relation
            .columns
            .iter()
            .any(|known| known.name == column)
    }

    /// The columns to order its rows by.
    fn order<'t>(&'t self, selection: &'t Selection) -> Vec<&'t str> {
        if !selection.order.is_empty() {
            return selection.order.iter().map(String::as_str).collect();
        }
        let time = selection.time.as_deref().into_iter().chain(TIMES);
        let Some(time) = time.into_iter().find(|column| self.has(column)) else {
            let key = self.relation.primary_key.iter();
            return key.map(String::as_str).collect();
        };
        // Rows of one time belong to one transaction as a rule: a serial key has their order, a random one none.
        let integer = |name: &str| {
            let mut columns = self.relation.columns.iter();
            columns.any(|column| column.name == name && column.integer)
        };
        let key = self.relation.primary_key.iter().map(String::as_str);
        let key: Vec<_> = key.filter(|name| *name != time).collect();
        let serial = key.iter().all(|name| integer(name));
        let key = key.into_iter().filter(|_| serial);
        [time].into_iter().chain(key).collect()
    }

    /// The condition on its rows.
    fn filters(&self, selection: &Selection) -> Result<Vec<String>, SetupError> {
        let mut filters: Vec<String> = self.row_filter.iter().cloned().collect();
        if let Some(filter) = &selection.filter {
            filters.push(filter.clone());
        } else if selection.unsent {
            let sent = SENT.into_iter().find(|column| self.has(column));
            let sent = sent.ok_or_else(|| SetupError::SnapshotRule(self.name.clone()))?;
            filters.push(format!("{} IS NULL", quote_ident(sent)));
        }
        Ok(filters)
    }

    /// Its rows, with what orders them. `number`: its place among the tables that are read together.
    fn select(&self, number: usize, selection: &Selection) -> Result<String, SetupError> {
        let order = self.order(selection);
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
        // Children of an inherited table are published by themselves.
        let only = if self.relation.partitioned {
            ""
        } else {
            "ONLY "
        };
        // On lines of their own: a condition may end in a comment.
        let filters = self.filters(selection)?;
        let filters: Vec<String> = filters.iter().map(|sql| format!("(\n{sql}\n)")).collect();
        let filters = if filters.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", filters.join(" AND "))
        };
        Ok(format!(
            "SELECT {} FROM {only}{}.{}{filters}",
            listed.join(", "),
            quote_ident(&self.name.schema),
            quote_ident(&self.name.name),
        ))
    }
}

/// Tables with the same columns, whose rows are read in one order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) tables: Vec<Table>,
    /// A SELECT: the number of the table in the group, then the columns.
    pub(super) sql: String,
}

impl Group {
    fn new(tables: Vec<Table>, selection: &Selection) -> Result<Self, SetupError> {
        let places = tables.first().map_or(0, |table| table.sent.len());
        let orders = tables
            .first()
            .map_or(0, |table| table.order(selection).len());
        let selects = tables.iter().enumerate();
        let selects = selects.map(|(number, table)| table.select(number, selection));
        let selects = selects.collect::<Result<Vec<_>, _>>()?;
        let columns = (0..places).map(|place| format!(", \"column {place}\""));
        let order = (0..orders).map(|place| format!("\"walrelay {place}\", "));
        // Where the row is comes last, so that one snapshot has one order.
        let sql = format!(
            "SELECT \"walrelay table\"{} FROM ({}) AS \"rows\" ORDER BY {}\"walrelay oid\", \"walrelay row\"",
            columns.collect::<String>(),
            selects.join("\nUNION ALL "),
            order.collect::<String>(),
        );
        Ok(Self { tables, sql })
    }
}

/// What is to be read, in order.
pub(super) fn groups(tables: Vec<Table>, selection: &Selection) -> Result<Vec<Group>, SetupError> {
    let mut groups: Vec<Vec<Table>> = Vec::new();
    for table in tables {
        let alike = groups.iter_mut().find(|group| {
            group
                .first()
                .is_some_and(|first| alike(first, &table, selection))
        });
        match alike {
            Some(group) => group.push(table),
            None => groups.push(vec![table]),
        }
    }
    let groups = groups.into_iter();
    groups.map(|tables| Group::new(tables, selection)).collect()
}

/// Whether the rows of both can be read by one statement, in one order.
fn alike(one: &Table, other: &Table, selection: &Selection) -> bool {
    let shape = |table: &Table| -> Vec<(String, u32, i32)> {
        let columns = table.columns();
        columns
            .map(|column| (column.name.clone(), column.type_oid, column.modifier))
            .collect()
    };
    shape(one) == shape(other) && one.order(selection) == other.order(selection)
}

/// Looks the published tables up. One that is gone is left out.
pub(super) async fn tables(
    session: &mut Session,
    published: &[PublishedTable],
) -> Result<Vec<Table>, Error> {
    let major = session.server_version().major;
    let statements: Vec<String> = published.iter().map(|of| relation_sql(&of.table)).collect();
    let answers = session.query_all(&statements).await?;
    let found = published
        .iter()
        .zip(answers)
        .filter_map(|(published, rows)| {
            let json = rows.first()?.get("relation")?.to_owned();
            let relation: Relation = serde_json::from_str(&json).ok()?;
            let columns = relation.columns.iter().enumerate();
            let sent = columns.filter(|(_, column)| {
                // From 18 on the list of the publication says which generated columns are carried.
                (major >= 18 || !column.generated)
                    && published
                        .columns
                        .as_ref()
                        .is_none_or(|listed| listed.contains(&column.name))
            });
            let sent = sent.map(|(index, _)| index).collect();
            Some(Table {
                name: published.table.clone(),
                sent,
                relation,
                row_filter: published.row_filter.clone(),
            })
        });
    Ok(found.collect())
}

/// The condition in SQL on the rows of a table that no relay has sent.
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
    let found = tables(session, &[published]).await?;
    let filters = found.first().map(|found| found.filters(selection));
    let filters = filters.transpose()?.unwrap_or_default();
    let rule = filters.into_iter().next();
    rule.ok_or_else(|| SetupError::SnapshotRule(table.clone()).into())
}

fn relation_sql(name: &TableName) -> String {
    let index_columns = |which: &str| {
        format!(
            "a.attnum = ANY ((SELECT i.indkey::int2[] FROM pg_catalog.pg_index i \
             WHERE i.indrelid = c.oid AND {which})::int2[])"
        )
    };
    let identity = index_columns(
        "CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END",
    );
    let primary = index_columns("i.indisprimary");
    format!(
        "SELECT json_build_object('oid', c.oid::int8, 'partitioned', c.relkind = 'p', \
         'identity', c.relreplident, 'columns', (SELECT json_agg(json_build_object('name', a.attname, \
         'type_oid', a.atttypid::int8, 'modifier', a.atttypmod, 'is_key', coalesce({identity}, false), \
         'generated', a.attgenerated <> '', 'integer', a.atttypid IN (20, 21, 23)) ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), \
         'primary_key', coalesce((SELECT json_agg(a.attname ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND {primary}), '[]')) AS relation \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p')",
        quote_literal(&name.schema),
        quote_literal(&name.name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, columns: &[&str], integer_key: bool) -> Table {
        let columns = columns.iter().map(|name| RelationColumn {
            name: (*name).to_owned(),
            type_oid: 25,
            modifier: -1,
            is_key: *name == "id",
            generated: false,
            integer: *name == "id" && integer_key,
        });
        let columns: Vec<_> = columns.collect();
        Table {
            name: TableName {
                schema: "public".to_owned(),
                name: name.to_owned(),
            },
            sent: (0..columns.len()).collect(),
            relation: Relation {
                oid: 7,
                partitioned: false,
                identity: "d".to_owned(),
                columns,
                primary_key: vec!["id".to_owned()],
            },
            row_filter: None,
        }
    }

    #[test]
    fn rows_are_ordered_by_what_is_configured_or_by_their_time() {
        let timed = table("t", &["id", "payload", "created_at"], false);
        let serial = table("t", &["id", "payload", "created_at"], true);
        let plain = table("t", &["id", "payload"], false);
        let default = Selection::default();
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
    fn unsent_needs_a_column_or_a_condition() {
        let unsent = Selection {
            unsent: true,
            ..Selection::default()
        };
        let sent = table("t", &["id", "sent_at"], false);
        assert_eq!(sent.filters(&unsent).unwrap(), ["\"sent_at\" IS NULL"]);
        let plain = table("t", &["id"], false);
        let error = plain.filters(&unsent).unwrap_err();
        assert!(matches!(error, SetupError::SnapshotRule(_)), "{error}");
        let filtered = Selection {
            filter: Some("id > 'a' -- all but the first".to_owned()),
            ..unsent
        };
        let mut both = plain;
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
            table("a", &["id"], false),
            table("b", &["id", "more"], false),
            table("c", &["id"], false),
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
