//! Types of columns by OID. The OIDs are those of `pg_type.dat`; below 16384 they never change.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    Verbatim,
    /// `t` and `f`, as Postgres writes booleans, become `true` and `false`, as Java writes them.
    Boolean,
}

impl Reading {
    /// Returns the text for the record; `None` if the text is not that of a boolean.
    pub(crate) const fn read(self, text: &[u8]) -> Option<&[u8]> {
        match (self, text) {
            (Self::Verbatim, text) => Some(text),
            (Self::Boolean, b"t") => Some(b"true"),
            (Self::Boolean, b"f") => Some(b"false"),
            (Self::Boolean, _) => None,
        }
    }
}

const BOOL: u32 = 16;

/// Returns the way to read a column of this type for the dead letter of an unroutable row.
pub(crate) const fn reading(type_oid: u32) -> Reading {
    match type_oid {
        BOOL => Reading::Boolean,
        _ => Reading::Verbatim,
    }
}

/// Describes the type in an error: by its name if known, else by its OID.
pub(crate) fn described(type_oid: u32) -> String {
    match name(type_oid) {
        Some(name) => name.to_owned(),
        None => format!("{type_oid} (pg_type.oid)"),
    }
}

const fn name(type_oid: u32) -> Option<&'static str> {
    Some(match type_oid {
        BOOL => "boolean",
        17 => "bytea",
        18 => "\"char\"",
        20 => "bigint",
        21 => "smallint",
        23 => "integer",
        26 => "oid",
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
