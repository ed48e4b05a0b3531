//! Which column types read the same in Postgres' text form and in Debezium's, for key and value
//! under `StringConverter` and for headers under `SimpleHeaderConverter`.
//!
//! The list is what the recorded outcomes confirm (`tests/golden`, lines with `columns`); a type
//! that is not confirmed there is refused. OIDs are those of `pg_type.dat`, fixed for ever below
//! 16384.

use crate::Role;

/// How a column's text becomes a record's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As it is.
    Verbatim,
    /// Postgres writes `t` and `f`, Java `true` and `false`.
    Boolean,
}

/// The first OID that is given to a type made by a user or an extension (`FirstNormalObjectId`).
const FIRST_USER_TYPE: u32 = 16384;

const BOOL: u32 = 16;
const NAME: u32 = 19;
const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const OID: u32 = 26;
const JSON: u32 = 114;
const XML: u32 = 142;
const INET: u32 = 869;
const BPCHAR: u32 = 1042;
const VARCHAR: u32 = 1043;
const UUID: u32 = 2950;
const JSONB: u32 = 3802;

/// How to read a column of this type in this role, or `None` where it cannot be used.
pub(crate) const fn reading(type_oid: u32, role: &Role) -> Option<Reading> {
    match type_oid {
        TEXT | VARCHAR | BPCHAR | NAME | UUID | JSON | JSONB | XML | INET | FIRST_USER_TYPE.. => {
            Some(Reading::Verbatim)
        }
        // Debezium reads the routing value with Struct.getString, which refuses other schemas.
        _ if matches!(role, Role::RouteBy) => None,
        INT2 | INT4 | INT8 | OID => Some(Reading::Verbatim),
        BOOL => Some(Reading::Boolean),
        _ => None,
    }
}

/// The name of a type that people know it by, where it is one they are likely to have tried.
pub(crate) const fn name(type_oid: u32) -> Option<&'static str> {
    Some(match type_oid {
        BOOL => "boolean",
        17 => "bytea",
        18 => "\"char\"",
        INT8 => "bigint",
        INT2 => "smallint",
        INT4 => "integer",
        OID => "oid",
        650 => "cidr",
        700 => "real",
        701 => "double precision",
        790 => "money",
        829 => "macaddr",
        774 => "macaddr8",
        1082 => "date",
        1083 => "time",
        1114 => "timestamp",
        1184 => "timestamptz",
        1186 => "interval",
        1266 => "timetz",
        1560 => "bit",
        1562 => "varbit",
        1700 => "numeric",
        3220 => "pg_lsn",
        3614 => "tsvector",
        3615 => "tsquery",
        5069 => "xid8",
        199 => "json[]",
        1000 => "boolean[]",
        1001 => "bytea[]",
        1005 => "smallint[]",
        1007 => "integer[]",
        1009 => "text[]",
        1015 => "varchar[]",
        1016 => "bigint[]",
        1115 => "timestamp[]",
        1185 => "timestamptz[]",
        1231 => "numeric[]",
        2951 => "uuid[]",
        3807 => "jsonb[]",
        _ => return None,
    })
}
