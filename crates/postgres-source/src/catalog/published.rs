//! The tables that a publication carries, read only from the catalogs.
//!
//! The view `pg_publication_tables` has them, too. Its function opens each table (since Postgres 15),
//! so a query of it waits for every migration that locks a table, and a relay that reconnects would
//! wait with it. Here the rules of that function (`pg_get_publication_tables` in `pg_publication.c`)
//! are applied to the catalogs, of which no query locks a table.

use walrelay_relay::TableName;
use walrelay_walsender::quote_literal;

/// `pg_get_publication_tables` leaves out what is older than the database's own objects
/// (`FirstNormalObjectId`), and what writes no WAL.
const PUBLISHABLE: &str = "c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384";
/// Takes the place of a row filter whose text the server does not print without the table's lock.
pub(crate) const HIDDEN_FILTER: &str = "a condition that is not shown while the table is locked";

/// The choice whether row filters are printed of tables that another session locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filters {
    /// A text replaces such a filter: the query waits for no lock.
    Hidden,
    /// The query waits for the lock, unless this transaction holds the table.
    Shown,
}

/// Returns a query of schema, name, column list (JSON) and row filter of each table that a publication carries. Column lists and row filters came with Postgres 15.
pub(super) fn published_tables_sql(major: u32, publication: &str, filters: Filters) -> String {
    let name = quote_literal(publication);
    let (schemas, lists) = if major >= 15 {
        (
            format!(
                " UNION SELECT c.oid FROM p JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid \
                 JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid WHERE {PUBLISHABLE}"
            ),
            lists(major, filters),
        )
    } else {
        (
            String::new(),
            "NULL AS columns, NULL AS rowfilter".to_owned(),
        )
    };
    // FOR ALL TABLES EXCEPT, which leaves out partitions with their root, came with Postgres 19.
    let (listed, unlisted) = if major >= 19 {
        (
            " AND NOT r.prexcept",
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel x WHERE x.prpubid = p.oid AND x.prexcept \
              AND (x.prrelid = c.oid OR x.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid))))",
        )
    } else {
        ("", "")
    };
    let below_another = "EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(named.oid) a \
        WHERE a.relid <> named.oid AND a.relid IN (SELECT oid FROM named))";
    format!(
        "WITH RECURSIVE p AS (SELECT * FROM pg_catalog.pg_publication WHERE pubname = {name}), \
         named AS (SELECT r.prrelid AS oid FROM p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid{listed} \
          UNION SELECT c.oid FROM p JOIN pg_catalog.pg_class c ON p.puballtables WHERE {PUBLISHABLE}{unlisted}{schemas}), \
         parts AS (SELECT oid FROM named UNION SELECT i.inhrelid FROM parts \
          JOIN pg_catalog.pg_class c ON c.oid = parts.oid AND c.relkind = 'p' \
          JOIN pg_catalog.pg_inherits i ON i.inhparent = c.oid), \
         carried AS (SELECT named.oid FROM named, p WHERE p.pubviaroot AND NOT ({below_another}) \
          UNION SELECT c.oid FROM parts JOIN pg_catalog.pg_class c ON c.oid = parts.oid, p \
          WHERE NOT p.pubviaroot AND c.relkind <> 'p' AND (NOT p.puballtables OR {PUBLISHABLE})) \
         SELECT n.nspname AS schemaname, c.relname AS tablename, {lists} \
         FROM carried JOIN pg_catalog.pg_class c ON c.oid = carried.oid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace CROSS JOIN p \
         LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid \
         AND NOT p.puballtables{unless} ORDER BY 1, 2",
        unless = if major >= 15 {
            // A table that is published with all others, or with its schema, has no list and no filter.
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s \
              WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"
        } else {
            ""
        },
    )
}

/// Returns a query of the entries of a publication, as the OIDs of table and entry, whether the publication carries the
/// table itself or its partitions. The entry of a schema is one of each of its tables, and that of a table is one of
/// those `outboxes` that are its partitions, after their own. An own entry with a row filter that another entry makes
/// ineffective is left out: it would not carry all rows without the other one.
pub(super) fn entries_sql(major: u32, publication: &str, outboxes: &[TableName]) -> String {
    let name = quote_literal(publication);
    // SQL has no empty list.
    let nothing = TableName::new("", "");
    let outboxes: Vec<String> = outboxes
        .iter()
        .chain([&nothing])
        .map(|TableName { schema, name }| {
            format!("({}, {})", quote_literal(schema), quote_literal(name))
        })
        .collect();
    let (filtered, schemas) = if major >= 15 {
        (
            "r.prqual IS NOT NULL",
            format!(
                " UNION ALL SELECT c.oid, s.oid, false, 2 FROM p \
                 JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid \
                 JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid WHERE {PUBLISHABLE}"
            ),
        )
    } else {
        ("false", String::new())
    };
    format!(
        "WITH p AS (SELECT oid, puballtables FROM pg_catalog.pg_publication WHERE pubname = {name}), \
         e AS (SELECT r.prrelid AS relid, r.oid AS entry, {filtered} AS filtered, 1 AS kind \
          FROM p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND NOT p.puballtables{schemas}) \
         SELECT relid, entry, kind FROM e \
          WHERE NOT filtered OR NOT EXISTS (SELECT FROM e s WHERE s.relid = e.relid AND s.kind = 2) \
         UNION ALL SELECT c.oid, e.entry, 3 FROM pg_catalog.pg_class c \
          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
          CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(c.oid) a JOIN e ON e.relid = a.relid \
          WHERE c.relispartition AND a.relid <> c.oid AND (n.nspname, c.relname) IN ({outboxes}) \
          AND NOT EXISTS (SELECT FROM e own WHERE own.relid = c.oid AND own.filtered) \
         ORDER BY kind, entry, relid",
        outboxes = outboxes.join(", "),
    )
}

/// Returns the columns of table `c` in publication `p`, whose row for it is `r`.
fn lists(major: u32, filters: Filters) -> String {
    let hides = filters == Filters::Hidden;
    let generated = match major {
        // Listed, though not sent.
        ..16 => "true",
        16 | 17 => "a.attgenerated = ''",
        18.. => "(a.attgenerated = '' OR p.pubgencols = 's' AND a.attgenerated = 's')",
    };
    // `pg_get_expr` of an expression with columns locks their table.
    format!(
        "(SELECT json_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute a \
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
          AND CASE WHEN r.prattrs IS NULL THEN {generated} ELSE a.attnum = ANY (r.prattrs::int2[]) END) \
          AS columns, \
         CASE WHEN r.prqual IS NOT NULL THEN CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_locks l \
          WHERE {hides} AND l.relation = c.oid AND l.mode = 'AccessExclusiveLock' AND l.database = \
          (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())) THEN {hidden} \
          ELSE pg_catalog.pg_get_expr(r.prqual, r.prrelid) END END AS rowfilter",
        hidden = quote_literal(HIDDEN_FILTER),
    )
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::{Db, servers};
    use walrelay_walsender::{ConnInfo, Session, SessionKind};

    use super::*;

    const TABLES: &str = "CREATE SCHEMA s; CREATE TABLE s.a (id int PRIMARY KEY, b text, g int GENERATED ALWAYS AS (id) STORED); \
        CREATE TABLE plain (id int PRIMARY KEY, gone text, kept text); ALTER TABLE plain DROP COLUMN gone; \
        CREATE UNLOGGED TABLE quick (id int); CREATE TABLE s.child () INHERITS (s.a); \
        CREATE TABLE root (id int, at int) PARTITION BY RANGE (at); \
        CREATE TABLE s.leaf PARTITION OF root FOR VALUES FROM (0) TO (10); \
        CREATE TABLE middle PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY LIST (at); \
        CREATE UNLOGGED TABLE unlogged PARTITION OF root FOR VALUES FROM (30) TO (40); \
        CREATE TABLE deep PARTITION OF middle FOR VALUES IN (11)";
    /// The tables of a publication, and the first version that knows the form.
    const PUBLICATIONS: &[(u32, &str)] = &[
        (14, ""),
        (14, "FOR TABLE plain, ONLY s.a"),
        (14, "FOR TABLE s.a"),
        (14, "FOR TABLE root"),
        (14, "FOR TABLE middle, s.leaf"),
        (14, "FOR TABLE root, deep"),
        (14, "FOR ALL TABLES"),
        (15, "FOR TABLES IN SCHEMA s"),
        (15, "FOR TABLES IN SCHEMA public, TABLE s.leaf"),
        (
            15,
            "FOR TABLE plain (id, kept) WHERE (id > 1 AND kept <> 'x')",
        ),
        (15, "FOR TABLE plain WHERE (id > 1), root"),
        (19, "FOR ALL TABLES EXCEPT (TABLE plain, s.a)"),
        (19, "FOR ALL TABLES EXCEPT (TABLE root)"),
        (19, "FOR ALL TABLES, ALL SEQUENCES"),
    ];

    fn made(major: u32, db: &Db) -> Vec<String> {
        let mut names = Vec::new();
        for (_, of) in PUBLICATIONS.iter().filter(|(from, _)| *from <= major) {
            for via_root in [false, true] {
                let mut options = vec![format!("publish_via_partition_root = {via_root}")];
                if major >= 18 {
                    options.push("publish_generated_columns = stored".to_owned());
                }
                for options in [&options[..1], &options[..]] {
                    let name = format!("p{}", names.len());
                    let options = options.join(", ");
                    db.batch(&format!("CREATE PUBLICATION {name} {of} WITH ({options})"));
                    names.push(name);
                }
            }
        }
        names
    }

    /// The rules are those of the view `pg_publication_tables`, on each version.
    #[tokio::test]
    async fn the_tables_are_those_that_the_server_lists() {
        for major in [14, 15, 16, 17, 18, 19] {
            let postgres = if major < 19 {
                servers::postgres(major)
            } else if let Some(postgres) = servers::installed_postgres_with(major, &[]) {
                postgres
            } else {
                break;
            };
            let db = Db::connect(&postgres.url());
            db.batch(TABLES);
            let info: ConnInfo = postgres.url().parse().unwrap();
            let mut session = Session::connect(&info, SessionKind::Sql, &[])
                .await
                .unwrap();
            let lists = if major >= 15 {
                "to_json(attnames) AS columns, rowfilter"
            } else {
                "NULL AS columns, NULL AS rowfilter"
            };
            let mut carried = 0;
            for name in made(major, &db) {
                let view = format!(
                    "SELECT schemaname, tablename, {lists} FROM pg_publication_tables \
                     WHERE pubname = '{name}' ORDER BY 1, 2"
                );
                let expected = rows(&mut session, &view).await;
                let found = rows(
                    &mut session,
                    &published_tables_sql(major, &name, Filters::Hidden),
                )
                .await;
                assert_eq!(found, expected, "{major}: {name}");
                carried += found.len();
            }
            assert!(carried > 20, "{major}: {carried}");
        }
    }

    async fn rows(session: &mut Session, sql: &str) -> Vec<Vec<Option<String>>> {
        let rows = session.query(sql).await.unwrap();
        let columns = ["schemaname", "tablename", "columns", "rowfilter"];
        let rows = rows.iter().map(|row| {
            let values =
                columns.map(|column| row.get(column).map(|value| value.replace(", ", ",")));
            values.to_vec()
        });
        let mut rows: Vec<_> = rows.collect();
        // Postgres 14 lists a partition twice that is named beside its root.
        rows.dedup();
        rows
    }
}
