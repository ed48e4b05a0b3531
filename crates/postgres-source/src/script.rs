//! SQL statements that create and drop the objects of a relay in a database.

use std::collections::BTreeSet;

use walrelay_relay::TableName;
use walrelay_walsender::{dollar_quoted, quote_ident, quote_literal};

/// A function that writes events into the WAL as logical messages.
///
/// Its text is in `migrations/`, and here with any prefix: a published crate contains only its own folder.
/// A test of `walrelay init` holds both equal (`the_migrations_of_emit_are_what_a_dry_run_prints`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmitFunction {
    /// `outbox.emit`: one event. Its text creates the schema and the [gate](Self::gate), too.
    Emit,
    /// `outbox.emit_all`: several events in one message. Its text creates the gate, because `outbox.emit` may be of a
    /// former version.
    EmitAll,
}

impl EmitFunction {
    /// Returns the table without rows that both functions write to. A fence there makes them fail. A publication may
    /// carry it.
    pub fn gate() -> TableName {
        TableName::new("outbox", "emit_gate")
    }

    /// All functions, in the order in which they are created.
    pub const ALL: [Self; 2] = [Self::Emit, Self::EmitAll];

    /// Returns the name of the function.
    pub fn name(self) -> &'static str {
        match self {
            Self::Emit => "outbox.emit",
            Self::EmitAll => "outbox.emit_all",
        }
    }

    /// Returns SQL that creates or replaces the function, for messages with this prefix.
    pub fn create(self, prefix: &str) -> String {
        let [before, _, after] = self.parts();
        let (tag, _) = self.text();
        format!("{before}{}{after}", dollar_quoted(tag, &self.body(prefix)))
    }

    /// Returns a query for the body of the function; no row if the function does not exist.
    pub fn find(self) -> &'static str {
        match self {
            Self::Emit => {
                "SELECT prosrc FROM pg_catalog.pg_proc WHERE oid = \
                 pg_catalog.to_regprocedure('outbox.emit(text, text, jsonb, jsonb, text, text, uuid)')"
            }
            Self::EmitAll => {
                "SELECT prosrc FROM pg_catalog.pg_proc WHERE oid = \
                 pg_catalog.to_regprocedure('outbox.emit_all(jsonb)')"
            }
        }
    }

    /// Returns whether a function with this body is [`create`](Self::create)'s.
    pub fn is(self, body: &str, prefix: &str) -> bool {
        self.body(prefix) == body
    }

    /// Returns whether a function with this body, perhaps of a former version, writes messages with this prefix.
    pub(crate) fn writes(body: &str, prefix: &str) -> bool {
        body.contains(&format!("emit_message(true, {}, ", quote_literal(prefix)))
    }

    fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::Emit => ("emit", include_str!("emit.sql")),
            Self::EmitAll => ("emit_all", include_str!("emit_all.sql")),
        }
    }

    /// Returns the text before the body, the body, and the text after it.
    fn parts(self) -> [&'static str; 3] {
        let (tag, text) = self.text();
        let quote = format!("${tag}$");
        let mut parts = text.trim_end().split(&*quote);
        std::array::from_fn(|_| parts.next().unwrap_or_default())
    }

    /// Returns the body for this prefix.
    fn body(self, prefix: &str) -> String {
        let [_, body, _] = self.parts();
        body.replace("{prefix}", &quote_literal(prefix))
    }
}

/// Returns a table's name in SQL: `"schema"."name"`.
pub fn table(name: &TableName) -> String {
    format!("{}.{}", quote_ident(&name.schema), quote_ident(&name.name))
}

/// Returns a table's own rows as an item of `FROM`: `ONLY "schema"."name"`, because children by INHERITS are tables of
/// their own; without ONLY if it is partitioned.
pub(crate) fn rows_of(name: &TableName, is_partitioned: bool) -> String {
    let only = if is_partitioned { "" } else { "ONLY " };
    format!("{only}{}", table(name))
}

/// Writes the text of an array of texts.
pub(crate) fn array<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut array = String::from("{");
    for (number, value) in values.enumerate() {
        array.push_str(if number == 0 { "\"" } else { ",\"" });
        for char in value.chars() {
            if matches!(char, '"' | '\\') {
                array.push('\\');
            }
            array.push(char);
        }
        array.push('"');
    }
    array.push('}');
    array
}

/// Returns quoted table names, joined by commas.
pub fn tables(names: &[TableName]) -> String {
    names.iter().map(table).collect::<Vec<_>>().join(", ")
}

/// Returns SQL that creates the publication: inserts only, partitions under their root's name.
/// Without tables the publication carries only logical messages, which any publication carries.
pub fn create_publication(publication: &str, names: &[TableName]) -> String {
    create_publication_in("", publication, names)
}

/// Returns the same with more indentation, which cannot be added later: a name may contain a
/// newline.
fn create_publication_in(indent: &str, publication: &str, names: &[TableName]) -> String {
    let of = if names.is_empty() {
        String::new()
    } else {
        format!(" FOR TABLE {}", tables(names))
    };
    format!(
        "CREATE PUBLICATION {}{of}\n{indent}    WITH (publish = 'insert', publish_via_partition_root = true);",
        quote_ident(publication),
    )
}

/// Returns SQL that marks a publication: walrelay has created it, and not yet its slot. To be run in the
/// transaction of [`create_publication`].
pub fn mark_publication(publication: &str, slot: &str) -> String {
    format!(
        "COMMENT ON PUBLICATION {} IS {};",
        quote_ident(publication),
        quote_literal(&publication_mark(slot))
    )
}

/// Returns SQL that removes the mark of [`mark_publication`].
pub fn unmark_publication(publication: &str) -> String {
    format!(
        "COMMENT ON PUBLICATION {} IS NULL;",
        quote_ident(publication)
    )
}

/// Returns a condition on a row of `pg_publication`: it is marked, and this role may remove the mark.
pub(crate) fn publication_is_marked(slot: &str) -> String {
    format!(
        "(coalesce(pg_catalog.obj_description(pg_publication.oid, 'pg_publication') = {}, false) \
         AND pg_catalog.pg_has_role(pubowner, 'USAGE'))",
        quote_literal(&publication_mark(slot))
    )
}

fn publication_mark(slot: &str) -> String {
    format!("walrelay: slot {} is not made yet", quote_ident(slot))
}

/// Returns SQL that creates the role of the relay. The role may log in and replicate; it owns and
/// reads nothing.
pub fn create_role(role: &str) -> String {
    format!("CREATE ROLE {} LOGIN REPLICATION;", quote_ident(role))
}

/// Returns the statement, executed only if `found` returns no row, so that a script that failed
/// halfway can be run again. For statements that have no IF NOT EXISTS.
pub(crate) fn unless(found: &str, statement: &str) -> String {
    let body = format!(" BEGIN IF NOT EXISTS ({found}) THEN\n    {statement} END IF; END ");
    format!("DO {};", dollar_quoted("do", &body))
}

/// Returns [`create_publication`], unless a publication of that name exists.
pub fn ensure_publication(publication: &str, tables: &[TableName]) -> String {
    let name = quote_literal(publication);
    unless(
        &format!("SELECT FROM pg_catalog.pg_publication WHERE pubname = {name}"),
        &create_publication_in("    ", publication, tables),
    )
}

/// Returns [`create_role`], unless a role of that name exists.
pub fn ensure_role(role: &str) -> String {
    let name = quote_literal(role);
    unless(
        &format!("SELECT FROM pg_catalog.pg_roles WHERE rolname = {name}"),
        &create_role(role),
    )
}

/// Returns [`create_slot`], unless a slot of that name exists.
pub fn ensure_slot(slot: &str, failover: bool) -> String {
    let name = quote_literal(slot);
    let create = create_slot(slot, failover);
    format!(
        "{}\n    WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {name});",
        create.trim_end_matches(';')
    )
}

/// Returns SQL that creates the slot. From then on the server keeps WAL for the relay. `failover`:
/// standbys keep a copy of the slot (Postgres 17 and newer).
pub fn create_slot(slot: &str, failover: bool) -> String {
    format!(
        "SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput'{});",
        quote_literal(slot),
        if failover { ", failover => true" } else { "" }
    )
}

/// Returns SQL that lets a role name the tables, as whoever reads or changes their rows must; `None` if all
/// are in `public`, where every role may.
pub fn grant_usage(names: &[TableName], role: &str) -> Option<String> {
    let schemas = names.iter().map(|name| &*name.schema);
    let schemas: BTreeSet<&str> = schemas.filter(|schema| *schema != "public").collect();
    let schemas: Vec<String> = schemas.into_iter().map(quote_ident).collect();
    let role = quote_ident(role);
    let grant = || format!("GRANT USAGE ON SCHEMA {} TO {role};", schemas.join(", "));
    (!schemas.is_empty()).then(grant)
}

/// Returns SQL that grants SELECT on the tables to a role.
pub fn grant_select(names: &[TableName], role: &str) -> String {
    format!(
        "GRANT SELECT ON {} TO {};",
        tables(names),
        quote_ident(role)
    )
}

/// Returns SQL that drops the slot.
pub fn drop_slot(slot: &str) -> String {
    format!(
        "SELECT pg_catalog.pg_drop_replication_slot({});",
        quote_literal(slot)
    )
}
