//! Facts about columns that the router needs and the stream does not carry: NOT NULL, defaults, and
//! types that are not built in.

use std::collections::HashMap;

use serde::Deserialize;
use walrelay_event_router::{ColumnFacts, TableFacts, TypeFacts, TypeKind};
use walrelay_lsn::TypeOid;
use walrelay_relay::TableName;
use walrelay_walsender::{Error, Session, quote_literal};

use super::row::json;

/// The deepest nesting of domains and arrays that is described.
const MAX_DEPTH: u8 = 16;

#[derive(Deserialize)]
struct Column {
    name: String,
    type_oid: u32,
    not_null: bool,
    default: Option<String>,
}

#[derive(Deserialize)]
struct Type {
    oid: u32,
    name: String,
    /// The column `pg_type.typtype`.
    kind: String,
    is_array: bool,
    /// OID of an array's element type or of a domain's base type; 0 for other types.
    of: u32,
    modifier: i32,
    labels: Option<Vec<String>>,
}

/// Describes the columns of the tables for the router. Tables that do not exist, or whose
/// description cannot be parsed, are left out: the router works without it.
pub async fn describe(
    session: &mut Session,
    tables: &[TableName],
) -> Result<Vec<TableFacts>, Error> {
    let mut described = Vec::with_capacity(tables.len());
    for table in tables {
        let of_table = format!(
            "pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = {} AND c.relname = {} AND a.attnum > 0 AND NOT a.attisdropped",
            quote_literal(&table.schema),
            quote_literal(&table.name),
        );
        // A default names no column. Given the table, `pg_get_expr` would lock it.
        let columns = format!(
            "SELECT json_agg(json_build_object('name', a.attname, 'type_oid', a.atttypid::int8, \
             'not_null', a.attnotnull OR coalesce((SELECT t.typtype = 'd' AND t.typnotnull \
              FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid), false), \
             'default', (SELECT pg_catalog.pg_get_expr(d.adbin, 0) \
              FROM pg_catalog.pg_attrdef d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum \
              AND a.attgenerated = ''))) AS columns FROM {of_table}"
        );
        let types = format!(
            "WITH RECURSIVE used AS (SELECT a.atttypid AS oid FROM {of_table} UNION \
             SELECT CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END \
             FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid \
             WHERE t.typtype = 'd' OR t.typcategory = 'A') \
             SELECT json_agg(json_build_object('oid', t.oid::int8, 'name', t.typname, \
             'kind', t.typtype, 'is_array', t.typcategory = 'A' AND t.typelem <> 0, \
             'of', (CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END)::int8, \
             'modifier', t.typtypmod, 'labels', (SELECT json_agg(e.enumlabel ORDER BY \
              e.enumsortorder) FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid))) AS types \
             FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid"
        );
        let columns = session.query(&columns).await?;
        let types = session.query(&types).await?;
        let columns = columns.first().and_then(|row| json(&row, "columns"));
        let types = types
            .first()
            .and_then(|row| json::<Vec<Type>>(&row, "types"));
        if let (Some(columns), Some(types)) = (columns, types) {
            described.push(facts(table, columns, &types));
        }
    }
    Ok(described)
}

fn facts(table: &TableName, columns: Vec<Column>, types: &[Type]) -> TableFacts {
    let types: HashMap<u32, &Type> = types.iter().map(|facts| (facts.oid, facts)).collect();
    let columns = columns.into_iter().map(|column| ColumnFacts {
        name: column.name,
        type_facts: type_facts(column.type_oid, &types, MAX_DEPTH),
        not_null: column.not_null,
        default: column.default,
    });
    TableFacts {
        schema: table.schema.clone(),
        name: table.name.clone(),
        columns: columns.collect(),
    }
}

fn type_facts(oid: u32, types: &HashMap<u32, &Type>, depth: u8) -> TypeFacts {
    let Some(found) = types.get(&oid).filter(|_| depth > 0) else {
        return TypeFacts {
            oid: TypeOid::new(oid),
            name: String::new(),
            kind: TypeKind::Other,
        };
    };
    let of = || Box::new(type_facts(found.of, types, depth - 1));
    TypeFacts {
        oid: TypeOid::new(oid),
        name: found.name.clone(),
        kind: match found.kind.as_str() {
            "e" => TypeKind::Enum(found.labels.clone().unwrap_or_default()),
            "d" => TypeKind::Domain(of(), found.modifier),
            _ if found.is_array => TypeKind::Array(of()),
            "b" => TypeKind::Base,
            _ => TypeKind::Other,
        },
    }
}
