//! Column types by their names in `CREATE TABLE`.

use walrelay_lsn::TypeOid;

/// The type of a column, as in a Relation message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ColumnType {
    /// The column `pg_type.oid`.
    pub(super) oid: TypeOid,
    /// `pg_attribute.atttypmod`; -1 if the type has no modifier.
    pub(super) modifier: i32,
}

/// The rule by which `atttypmod` follows from the numbers in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Modifier {
    /// The type takes no numbers.
    Never,
    /// `varchar(n)`: n plus the four bytes of the header.
    Length,
    /// `bit(n)`, `timestamp(n)`: n.
    Plain,
    /// `numeric(p, s)`: both numbers, plus four.
    Decimal,
}

use Modifier::{Decimal, Length, Never, Plain};

/// The first OID of types that users and extensions create (`FirstNormalObjectId`).
const USER: u32 = 16384;

/// Names, OID, OID of the array type, modifier (`pg_type.dat` of Postgres).
const TYPES: &[(&str, u32, u32, Modifier)] = &[
    ("boolean|bool", 16, 1000, Never),
    ("bytea", 17, 1001, Never),
    ("\"char\"", 18, 1002, Never),
    ("name", 19, 1003, Never),
    ("bigint|int8|bigserial|serial8", 20, 1016, Never),
    ("smallint|int2|smallserial|serial2", 21, 1005, Never),
    ("integer|int|int4|serial|serial4", 23, 1007, Never),
    ("text", 25, 1009, Never),
    ("oid", 26, 1028, Never),
    ("json", 114, 199, Never),
    ("xml", 142, 143, Never),
    ("cidr", 650, 651, Never),
    ("real|float4", 700, 1021, Never),
    ("double precision|float8|float", 701, 1022, Never),
    ("macaddr8", 774, 775, Never),
    ("money", 790, 791, Never),
    ("macaddr", 829, 1040, Never),
    ("inet", 869, 1041, Never),
    ("character|char|bpchar", 1042, 1014, Length),
    ("character varying|varchar", 1043, 1015, Length),
    ("date", 1082, 1182, Never),
    ("time|time without time zone", 1083, 1183, Plain),
    ("timestamp|timestamp without time zone", 1114, 1115, Plain),
    ("timestamptz|timestamp with time zone", 1184, 1185, Plain),
    ("interval", 1186, 1187, Never),
    ("timetz|time with time zone", 1266, 1270, Plain),
    ("bit", 1560, 1561, Plain),
    ("bit varying|varbit", 1562, 1563, Plain),
    ("numeric|decimal", 1700, 1231, Decimal),
    ("uuid", 2950, 2951, Never),
    ("pg_lsn", 3220, 3221, Never),
    ("tsvector", 3614, 3643, Never),
    ("jsonb", 3802, 3807, Never),
    ("xid8", 5069, 271, Never),
    // Any enum, domain, composite type, or type of an extension: each database assigns their OIDs itself.
    ("user-defined|hstore", USER, USER + 1, Never),
];

/// A column's type and what may follow it in `CREATE TABLE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) column_type: ColumnType,
    pub(super) not_null: bool,
    /// An expression as `\d` shows it.
    pub(super) default: Option<String>,
}

/// The keyword between a type and its default.
const DEFAULT: &str = " default ";

impl Definition {
    /// Parses `varchar(20) NOT NULL DEFAULT 'x'`; the two constraints may come in any order.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rest = text.trim();
        let mut not_null = false;
        // `to_ascii_lowercase` keeps the length, so indexes are valid in both texts.
        let without = |rest: &str, words: &str| {
            let lower = rest.to_ascii_lowercase();
            lower.ends_with(words).then(|| rest.len() - words.len())
        };
        let mut strip = |rest: &mut &str| {
            while let Some(at) =
                without(rest, " not null").or_else(|| without(rest, " primary key"))
            {
                *rest = rest.get(..at).unwrap_or_default().trim_end();
                not_null = true;
            }
        };
        strip(&mut rest);
        let default = match rest.to_ascii_lowercase().find(DEFAULT) {
            None => None,
            Some(at) => {
                let expression = rest.get(at + DEFAULT.len()..).unwrap_or_default().trim();
                rest = rest.get(..at).unwrap_or_default();
                strip(&mut rest);
                Some(expression.to_owned())
            }
        };
        Ok(Self {
            column_type: ColumnType::parse(rest)?,
            not_null,
            default,
        })
    }
}

impl ColumnType {
    pub(super) const BOOLEAN: Self = Self::plain(16);
    pub(super) const BIGINT: Self = Self::plain(20);
    pub(super) const TEXT: Self = Self::plain(25);
    pub(super) const DATE: Self = Self::plain(1082);
    pub(super) const TIMESTAMP: Self = Self::plain(1114);
    pub(super) const TIMESTAMPTZ: Self = Self::plain(1184);
    pub(super) const NUMERIC: Self = Self::plain(1700);
    pub(super) const UUID: Self = Self::plain(2950);
    pub(super) const JSONB: Self = Self::plain(3802);

    const fn plain(oid: u32) -> Self {
        Self {
            oid: TypeOid::new(oid),
            modifier: -1,
        }
    }

    /// Parses `varchar(20)` or `numeric(10, 2)[]`. The error suggests the nearest name.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_lowercase();
        let (name, array) = match lower.strip_suffix("[]") {
            Some(name) => (name.trim_end(), true),
            None => (lower.as_str(), false),
        };
        // The number may be in the middle: `timestamp(3) with time zone`.
        let (name, numbers) = match name.split_once('(') {
            None => (name.to_owned(), Vec::new()),
            Some((before, rest)) => {
                let wrong = || format!("{text:?}: a ( is not closed, or no number stands in it");
                let (inner, after) = rest.split_once(')').ok_or_else(wrong)?;
                let numbers: Result<Vec<i32>, _> = inner
                    .split(',')
                    .map(|number| number.trim().parse::<u16>().map(i32::from))
                    .collect();
                let name = format!("{} {}", before.trim(), after.trim());
                (name.trim().to_owned(), numbers.map_err(|_| wrong())?)
            }
        };
        let entry = TYPES
            .iter()
            .find(|(names, ..)| names.split('|').any(|alias| alias == name));
        let Some((_, oid, array_oid, modifier)) = entry else {
            return Err(unknown(&name));
        };
        let modifier = match (modifier, numbers.as_slice()) {
            (_, []) => -1,
            (Length, [length]) => length + 4,
            (Plain, [number]) => *number,
            (Decimal, [precision]) => (precision << 16) + 4,
            (Decimal, [precision, scale]) => (precision << 16 | scale) + 4,
            _ => return Err(format!("{text:?}: {name} takes no such numbers")),
        };
        Ok(Self {
            oid: TypeOid::new(if array { *array_oid } else { *oid }),
            modifier,
        })
    }
}

fn unknown(name: &str) -> String {
    let names = TYPES.iter().flat_map(|(names, ..)| names.split('|'));
    match walrelay_settings::nearest(name, names) {
        Some(nearest) => format!("there is no type {name:?}; did you mean {nearest:?}?"),
        None => format!(
            "there is no type {name:?} that is known here; an enum, a domain or a composite is \
             \"user-defined\""
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_create_table() {
        let parse = |text: &str| {
            let found = ColumnType::parse(text).unwrap_or_else(|error| panic!("{error}"));
            (found.oid.get(), found.modifier)
        };
        assert_eq!(parse("text"), (25, -1));
        assert_eq!(parse(" BIGINT "), (20, -1));
        assert_eq!(parse("varchar(20)"), (1043, 24));
        assert_eq!(parse("character varying (20)"), (1043, 24));
        assert_eq!(parse("numeric(10, 2)"), (1700, 655_366));
        assert_eq!(parse("numeric(10)[]"), (1231, 655_364));
        assert_eq!(parse("timestamp(3) with time zone"), (1184, 3));
        assert_eq!(parse("jsonb[]"), (3807, -1));
        assert_eq!(parse("user-defined"), (16384, -1));
        for known in [
            ColumnType::BOOLEAN,
            ColumnType::BIGINT,
            ColumnType::TEXT,
            ColumnType::DATE,
            ColumnType::TIMESTAMP,
            ColumnType::TIMESTAMPTZ,
            ColumnType::NUMERIC,
            ColumnType::UUID,
            ColumnType::JSONB,
        ] {
            assert!(TYPES.iter().any(|(_, oid, ..)| *oid == known.oid.get()));
        }
    }

    #[test]
    fn mistakes_are_explained() {
        let error = |text: &str| ColumnType::parse(text).unwrap_err();
        assert_eq!(
            error("jsnb"),
            "there is no type \"jsnb\"; did you mean \"jsonb\"?"
        );
        assert!(error("my_mood_enum").contains("\"user-defined\""));
        assert!(error("varchar(20").contains("is not closed"));
        assert!(error("varchar(x)").contains("no number"));
        assert!(error("text(5)").contains("takes no such numbers"));
        assert!(error("").contains("there is no type"));
    }
}
