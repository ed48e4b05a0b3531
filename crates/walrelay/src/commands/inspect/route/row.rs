//! Reads a row from a JSON file.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use walrelay_event_router::{ColumnFacts, TableFacts, TypeFacts, TypeKind};
use walrelay_lsn::RelationId;
use walrelay_pgoutput::{Column, ReplicaIdentity, Value, encode};
use walrelay_relay::TableName;

use super::types::{ColumnType, Definition};

/// A row: name, type and value of each column.
#[derive(Debug)]
pub(super) struct FileRow {
    /// Values are texts as Postgres prints them; `None` is NULL.
    columns: Vec<(String, ColumnType, Option<String>)>,
    /// Facts of the columns whose definition has `NOT NULL` or a default.
    facts: Vec<ColumnFacts>,
}

/// The member with the types of the columns.
const TYPES: &str = "$types";

/// The relation id in the messages made from the row.
const RELATION: RelationId = RelationId::new(1);

impl FileRow {
    /// Parses the content of the file. Errors name lines and columns, and no values.
    pub(super) fn read(text: &str, types: &[(String, String)]) -> Result<Self, String> {
        // Raw values, so that 12.50 stays 12.50.
        let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|error| {
            if error.is_data() {
                "an object of columns and values is wanted".to_owned()
            } else {
                format!("line {}, column {}: not JSON", error.line(), error.column())
            }
        })?;
        let mut definitions: BTreeMap<String, String> = BTreeMap::new();
        if let Some(given) = members.get(TYPES) {
            definitions = serde_json::from_str(given.get())
                .map_err(|_| format!("{TYPES:?} is an object of columns and names of types"))?;
        }
        definitions.extend(types.iter().cloned());
        if let Some(column) = definitions.keys().find(|name| !members.contains_key(*name)) {
            return Err(format!(
                "a type is given for {column:?}, which the row does not have"
            ));
        }
        let mut columns = Vec::new();
        let mut facts = Vec::new();
        for (column, raw) in members {
            if column == TYPES {
                continue;
            }
            if column.is_empty() || column.contains('\0') {
                return Err("a column has a name".to_owned());
            }
            let (value, inferred) =
                value(raw).map_err(|()| format!("column {column:?}: not text"))?;
            let column_type = match definitions.get(&column) {
                Some(text) => {
                    let definition = Definition::parse(text);
                    let definition =
                        definition.map_err(|why| format!("column {column:?}: {why}"))?;
                    if definition.not_null || definition.default.is_some() {
                        facts.push(definition.facts(&column));
                    }
                    definition.column_type
                }
                None => inferred,
            };
            // Postgres prints booleans as t and f.
            let value = match value.as_deref() {
                Some("true") if column_type == ColumnType::BOOLEAN => Some("t".to_owned()),
                Some("false") if column_type == ColumnType::BOOLEAN => Some("f".to_owned()),
                _ => value,
            };
            columns.push((column, column_type, value));
        }
        Ok(Self { columns, facts })
    }

    /// Returns the facts that the catalogs would give of the table; `None` if the file gives none.
    pub(super) fn facts(&self, table: &TableName) -> Option<TableFacts> {
        (!self.facts.is_empty()).then(|| TableFacts {
            schema: table.schema.clone(),
            name: table.name.clone(),
            columns: self.facts.clone(),
        })
    }

    /// Returns the Relation message of the table.
    pub(super) fn relation(&self, table: &TableName) -> Vec<u8> {
        let columns = self.columns.iter().map(|(name, column_type, _)| Column {
            name,
            is_key: false,
            type_oid: column_type.oid,
            type_modifier: column_type.modifier,
        });
        let identity = ReplicaIdentity::Default;
        encode::relation(RELATION, &table.schema, &table.name, identity, columns)
    }

    /// Returns the Insert message of the row.
    pub(super) fn insert(&self) -> Vec<u8> {
        let values: Vec<Value<'_>> = self
            .columns
            .iter()
            .map(|(_, _, value)| match value {
                Some(text) => Value::Text(text.as_bytes()),
                None => Value::Null,
            })
            .collect();
        encode::insert(RELATION, &values)
    }
}

impl Definition {
    fn facts(&self, column: &str) -> ColumnFacts {
        ColumnFacts {
            name: column.to_owned(),
            type_facts: TypeFacts {
                oid: self.column_type.oid,
                name: String::new(),
                kind: TypeKind::Base,
            },
            not_null: self.not_null,
            default: self.default.clone(),
        }
    }
}

/// Returns the text of a JSON value, and the column type inferred from it.
fn value(raw: &RawValue) -> Result<(Option<String>, ColumnType), ()> {
    let json = raw.get();
    Ok(match json.as_bytes().first() {
        Some(b'"') => {
            let text: String = serde_json::from_str(json).map_err(|_| ())?;
            let inferred = inferred_type(&text);
            (Some(text), inferred)
        }
        Some(b'n') => (None, ColumnType::TEXT),
        Some(b't' | b'f') => (Some(json.to_owned()), ColumnType::BOOLEAN),
        Some(b'{' | b'[') => (Some(json.to_owned()), ColumnType::JSONB),
        _ if json.parse::<i64>().is_ok() => (Some(json.to_owned()), ColumnType::BIGINT),
        _ => (Some(json.to_owned()), ColumnType::NUMERIC),
    })
}

/// Returns the column type inferred from a text.
fn inferred_type(text: &str) -> ColumnType {
    // In a pattern, 9 stands for a decimal digit and x for a hexadecimal one.
    let begins = |pattern: &str| {
        let mut pairs = text.bytes().zip(pattern.bytes());
        text.len() >= pattern.len()
            && pairs.all(|(byte, expected)| match expected {
                b'9' => byte.is_ascii_digit(),
                b'x' => byte.is_ascii_hexdigit(),
                expected => byte == expected,
            })
    };
    let is = |pattern: &str| text.len() == pattern.len() && begins(pattern);
    if is("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
        ColumnType::UUID
    } else if is("9999-99-99") {
        ColumnType::DATE
    } else if !begins("9999-99-99 99:99:99") && !begins("9999-99-99T99:99:99") {
        ColumnType::TEXT
    } else if text
        .get(19..)
        .is_some_and(|zone| zone.contains(['+', '-', 'Z']))
    {
        ColumnType::TIMESTAMPTZ
    } else {
        ColumnType::TIMESTAMP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        text: &str,
        types: &[(&str, &str)],
    ) -> Result<Vec<(String, u32, Option<String>)>, String> {
        let types: Vec<(String, String)> = types
            .iter()
            .map(|(column, name)| ((*column).to_owned(), (*name).to_owned()))
            .collect();
        let row = FileRow::read(text, &types)?;
        Ok(row
            .columns
            .into_iter()
            .map(|(name, column_type, value)| (name, column_type.oid.get(), value))
            .collect())
    }

    #[track_caller]
    fn one(json: &str, oid: u32, text: &str) {
        let found = read(&format!("{{\"c\": {json}}}"), &[]).unwrap();
        assert_eq!(
            found,
            [("c".to_owned(), oid, Some(text.to_owned()))],
            "{json}"
        );
    }

    #[test]
    fn types_are_inferred_from_values() {
        one("\"a\\u00e9\\n\"", 25, "aé\n");
        one("5", 20, "5");
        one("-9223372036854775808", 20, "-9223372036854775808");
        one("12.50", 1700, "12.50");
        one(
            "123456789012345678901234567890",
            1700,
            "123456789012345678901234567890",
        );
        one("true", 16, "t");
        one("{\"b\":  1, \"a\": 1.10}", 3802, "{\"b\":  1, \"a\": 1.10}");
        one("[1]", 3802, "[1]");
        one(
            "\"018F5a3e-7c1d-7b1a-9c55-0123456789ab\"",
            2950,
            "018F5a3e-7c1d-7b1a-9c55-0123456789ab",
        );
        one("\"2026-01-02\"", 1082, "2026-01-02");
        one("\"2026-01-02 03:04:05.6\"", 1114, "2026-01-02 03:04:05.6");
        one("\"2026-01-02 03:04:05+00\"", 1184, "2026-01-02 03:04:05+00");
        one("\"2026-01-02T03:04:05Z\"", 1184, "2026-01-02T03:04:05Z");
        let null = read("{\"c\": null}", &[]).unwrap();
        assert_eq!(null, [("c".to_owned(), 25, None)]);
    }

    #[test]
    fn types_can_be_given() {
        let text = r#"{"a": "5", "b": "true", "c": {"x": 1}, "$types": {"a": "int", "b": "text"}}"#;
        let found = read(text, &[("b", "boolean"), ("c", "json")]).unwrap();
        let oids: Vec<u32> = found.iter().map(|(_, oid, _)| *oid).collect();
        assert_eq!(oids, [23, 16, 114]);
        assert_eq!(found[1].2.as_deref(), Some("t"));
    }

    #[test]
    fn mistakes_are_explained_without_values() {
        for (text, types, expected) in [
            ("{\"a\": s3cret}", &[][..], "line 1, column 7: not JSON"),
            (
                "[\"s3cret\"]",
                &[],
                "an object of columns and values is wanted",
            ),
            ("", &[], "line 1, column 0: not JSON"),
            (
                "{\"$types\": [\"s3cret\"]}",
                &[],
                "\"$types\" is an object of columns and names of types",
            ),
            (
                "{\"a\": 1}",
                &[("b", "int")],
                "a type is given for \"b\", which the row does not have",
            ),
            (
                "{\"a\": 1}",
                &[("a", "imt")],
                "column \"a\": there is no type \"imt\"; did you mean \"int\"?",
            ),
            ("{\"\": \"s3cret\"}", &[], "a column has a name"),
        ] {
            assert_eq!(read(text, types).unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn constraints_are_written_as_in_create_table() {
        let text = r#"{"a": "x", "b": 5, "c": 1, "$types": {"a": "varchar(9) NOT NULL DEFAULT 'x'",
                    "b": "bigint default 7 not null", "c": "int"}}"#;
        let row = FileRow::read(text, &[]).unwrap();
        let table = TableName {
            schema: "s".to_owned(),
            name: "t".to_owned(),
        };
        let facts = row.facts(&table).unwrap();
        let columns = facts.columns.iter().map(|column| {
            let default = column.default.as_deref();
            (
                &*column.name,
                column.type_facts.oid.get(),
                column.not_null,
                default,
            )
        });
        let columns: Vec<_> = columns.collect();
        let expected = [("a", 1043, true, Some("'x'")), ("b", 20, true, Some("7"))];
        assert_eq!(columns, expected);
        assert!(
            FileRow::read("{\"a\": 1}", &[])
                .unwrap()
                .facts(&table)
                .is_none()
        );
    }
}
