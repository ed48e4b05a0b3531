//! `table.expand.json.payload`: turns a JSON text into a Connect value with a schema inferred from
//! it.
//!
//! The inferred types are Debezium's: an integer has 32 or 64 bits by its size, other numbers are
//! doubles, objects are structs named by their path. A value without a schema stays a text.
//! Debezium replaces the schema before it fails at such a value; this module replaces nothing.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::mem::discriminant;

use crate::render::connect::schema::{Data, Schema, SchemaType};
use crate::value::json::tree::{self, Tree};

/// Debezium's `field.name.adjustment.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NameAdjustment {
    /// Names stay as they are.
    #[default]
    None,
    /// Characters that Avro does not allow in a name become `_`.
    Avro,
    /// The characters not allowed in Avro names, and `_`, become their UTF-16 code units in hex,
    /// such as `_u002d`.
    AvroUnicode,
}

/// Options for expanding JSON payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expand {
    /// Keeps null members, as optional bytes (`table.json.payload.null.behavior=optional_bytes`).
    pub keep_nulls: bool,
    /// Keeps empty arrays, as arrays of optional strings
    /// (`table.json.payload.empty.array.behavior=optional_string`).
    pub keep_empty_arrays: bool,
    /// The option `field.name.adjustment.mode`.
    pub names: NameAdjustment,
}

/// The result of expanding a payload.
pub(crate) enum Expanded {
    Value(Schema, Data<'static>),
    /// The payload is `[]`: the text stays, without a schema.
    NoSchema,
    /// The text stays, with the schema of its column.
    Text,
}

/// The error of a value without a schema; the payload stays a text.
struct NoSchema;

/// Limit of nested values: half of Jackson's. A payload nested deeper stays a text.
const MAX_DEPTH: u16 = 500;

/// A number as Jackson reads it.
enum Number {
    Int(i32),
    Long(i64),
    /// An integer beyond 64 bits.
    Big,
    Double(f64),
}

impl Number {
    fn from_text(text: &str) -> Self {
        if text.contains(['.', 'e', 'E']) {
            return text.parse().map_or(Self::Big, Self::Double);
        }
        match (text.parse(), text.parse()) {
            (Ok(int), _) => Self::Int(int),
            (_, Ok(long)) => Self::Long(long),
            _ => Self::Big,
        }
    }
}

/// Keeps the last of several members of a name, at the place of the first.
fn keep_last(tree: &mut Tree<'_>) {
    match tree {
        Tree::Array(items) => items.iter_mut().for_each(keep_last),
        Tree::Object(members) => {
            let mut kept: Vec<(Cow<'_, str>, Tree<'_>)> = Vec::with_capacity(members.len());
            for (name, mut value) in members.drain(..) {
                keep_last(&mut value);
                match kept.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = value,
                    None => kept.push((name, value)),
                }
            }
            *members = kept;
        }
        _ => {}
    }
}

/// Returns true if both values may be items of one array.
fn is_like(left: &Tree<'_>, right: &Tree<'_>) -> bool {
    match (left, right) {
        (Tree::Number(a), Tree::Number(b)) => {
            discriminant(&Number::from_text(a)) == discriminant(&Number::from_text(b))
        }
        (a, b) => discriminant(a) == discriminant(b),
    }
}

impl Expand {
    /// Expands `text`, the value of the column `name`.
    pub(crate) fn expand(self, name: &str, text: &str) -> Expanded {
        if !text.starts_with(['{', '[']) {
            return Expanded::Text;
        }
        match tree::parse(text, MAX_DEPTH) {
            Ok(Tree::Array(items)) if items.is_empty() && !self.keep_empty_arrays => {
                Expanded::NoSchema
            }
            Ok(mut tree @ Tree::Object(_)) => {
                keep_last(&mut tree);
                let Ok(Some(schema)) = self.schema(Some(name), &tree) else {
                    return Expanded::Text;
                };
                match self.data(&tree, &schema) {
                    Ok(data) => Expanded::Value(schema, data),
                    Err(NoSchema) => Expanded::Text,
                }
            }
            _ => Expanded::Text,
        }
    }

    /// Infers the schema of a value; `None` if the value is left out.
    fn schema(self, path: Option<&str>, tree: &Tree<'_>) -> Result<Option<Schema>, NoSchema> {
        let kind = match tree {
            Tree::Null if self.keep_nulls => SchemaType::Bytes,
            Tree::Null => return Ok(None),
            Tree::Boolean(_) => SchemaType::Boolean,
            Tree::Number(text) => match Number::from_text(text) {
                Number::Int(_) => SchemaType::Int32,
                Number::Long(_) => SchemaType::Int64,
                // Debezium has no value for an integer beyond 64 bits.
                Number::Big => return Err(NoSchema),
                Number::Double(_) => SchemaType::Float64,
            },
            Tree::String(_) => SchemaType::String,
            Tree::Array(items) if items.is_empty() && !self.keep_empty_arrays => return Ok(None),
            Tree::Array(items) if items.is_empty() => {
                SchemaType::Array(Box::new(Schema::new(SchemaType::String).optional()))
            }
            Tree::Array(items) => SchemaType::Array(Box::new(self.item_schema(path, items)?)),
            Tree::Object(members) => {
                let mut fields: Vec<(String, Schema)> = Vec::with_capacity(members.len());
                for (name, member) in members {
                    let name = self.names.adjust(name);
                    let path = match path {
                        Some(path) if !path.trim().is_empty() => format!("{path}.{name}"),
                        _ => name.to_string(),
                    };
                    let schema = self.schema(Some(&path), member)?;
                    let known = fields.iter().any(|(known, _)| *known == name);
                    if let Some(schema) = schema.filter(|_| !known) {
                        // A field of a Connect struct needs a name.
                        if name.is_empty() {
                            return Err(NoSchema);
                        }
                        fields.push((name.into_owned(), schema));
                    }
                }
                let mut schema = Schema::new(SchemaType::Struct(fields));
                schema.name = path.map(|path| Cow::Owned(path.to_owned()));
                return Ok(Some(schema.optional()));
            }
        };
        Ok(Some(Schema::new(kind).optional()))
    }

    /// Infers the common schema of an array's items.
    fn item_schema(self, path: Option<&str>, items: &[Tree<'_>]) -> Result<Schema, NoSchema> {
        let set = || items.iter().filter(|item| !matches!(item, Tree::Null));
        let Some(first) = set().next() else {
            return self.schema(None, &Tree::Null)?.ok_or(NoSchema);
        };
        if set().any(|item| !is_like(item, first)) {
            return Err(NoSchema);
        }
        if !matches!(first, Tree::Object(_)) {
            return self.schema(None, first)?.ok_or(NoSchema);
        }
        let mut schemas: Vec<Schema> = Vec::new();
        for item in set() {
            let schema = self.schema(path, item)?.ok_or(NoSchema)?;
            if !schemas.contains(&schema) {
                schemas.push(schema);
            }
        }
        let mut schemas = schemas.into_iter();
        let mut merged = schemas.next().ok_or(NoSchema)?;
        for schema in schemas {
            merged = merge(merged, schema);
            // When Debezium merges schemas, it copies everything but this flag.
            merged.optional = false;
        }
        Ok(merged)
    }

    /// Reads the value by its schema, validated as in Connect.
    fn data(self, tree: &Tree<'_>, schema: &Schema) -> Result<Data<'static>, NoSchema> {
        Ok(match (tree, &schema.kind) {
            (Tree::Null, _) if schema.optional => Data::Null,
            (Tree::Boolean(it), SchemaType::Boolean) => Data::Boolean(*it),
            (Tree::Number(text), kind) => match (Number::from_text(text), kind) {
                (Number::Int(it), SchemaType::Int32) => Data::Int(it.into()),
                (Number::Long(it), SchemaType::Int64) => Data::Int(it),
                (Number::Double(it), SchemaType::Float64) => Data::Double(it),
                _ => return Err(NoSchema),
            },
            (Tree::String(it), SchemaType::String) => Data::Text(Cow::Owned(it.to_string())),
            (Tree::Array(items), SchemaType::Array(item)) => {
                let items = items.iter().map(|tree| self.data(tree, item));
                Data::List(items.collect::<Result<_, _>>()?)
            }
            (Tree::Object(members), SchemaType::Struct(fields)) => {
                // Members without a field in the common schema would be lost.
                if self.loses(members, fields) {
                    return Err(NoSchema);
                }
                let values = fields.iter().map(|(field, schema)| {
                    let mut members = members.iter();
                    let member = members.find(|(name, _)| self.names.adjust(name) == *field);
                    member.map_or(Ok(Data::Null), |(_, tree)| self.data(tree, schema))
                });
                Data::Struct(values.collect::<Result<_, _>>()?)
            }
            _ => return Err(NoSchema),
        })
    }

    /// Returns true if a member has no field, though it should not be left out.
    fn loses(self, members: &[(Cow<'_, str>, Tree<'_>)], fields: &[(String, Schema)]) -> bool {
        members.iter().any(|(name, tree)| {
            let left_out = match tree {
                Tree::Null => !self.keep_nulls,
                Tree::Array(items) => items.is_empty() && !self.keep_empty_arrays,
                _ => false,
            };
            let name = self.names.adjust(name);
            !left_out && !fields.iter().any(|(field, _)| *field == name)
        })
    }
}

/// Merges two schemas: the fields of both, if both are structs; the other schema, if one is that of
/// a null or of an empty array; the left one, if they contradict each other.
///
/// Debezium merges schemas in the order of their hash codes, which differs between starts. It does
/// not merge schemas of inner objects and arrays, but takes the first.
fn merge(left: Schema, right: Schema) -> Schema {
    let kind = match (left.kind, right.kind) {
        (SchemaType::Struct(mut fields), SchemaType::Struct(more)) => {
            for (name, schema) in more {
                match fields.iter_mut().find(|(known, _)| *known == name) {
                    None => fields.push((name, schema)),
                    Some((_, known)) => *known = merge(known.clone(), schema),
                }
            }
            SchemaType::Struct(fields)
        }
        (SchemaType::Array(left), SchemaType::Array(right)) => {
            SchemaType::Array(match (&left.kind, &right.kind) {
                // The schema of an empty array.
                (SchemaType::String, _) => right,
                (_, SchemaType::String) => left,
                _ => Box::new(merge(*left, *right)),
            })
        }
        // The schema of a null.
        (SchemaType::Bytes, kind) | (kind, _) => kind,
    };
    Schema { kind, ..left }
}

impl NameAdjustment {
    fn adjust(self, name: &str) -> Cow<'_, str> {
        let letter = |c: char| c.is_ascii_alphabetic() || (self == Self::Avro && c == '_');
        let valid = |at: usize, c: char| letter(c) || (at > 0 && c.is_ascii_digit());
        if self == Self::None || name.char_indices().all(|(at, c)| valid(at, c)) {
            return Cow::Borrowed(name);
        }
        let mut adjusted = String::with_capacity(name.len() + 8);
        for (at, c) in name.char_indices() {
            if valid(at, c) {
                adjusted.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String does not fail.
                let _ = match (self, *unit) {
                    (Self::AvroUnicode, unit @ ..=0xff) => write!(adjusted, "_u00{unit:x}"),
                    (Self::AvroUnicode, unit) => write!(adjusted, "_u{unit:x}"),
                    _ => adjusted.write_char('_'),
                };
            }
            if at == 0 && self == Self::Avro && c.is_numeric() {
                adjusted.push(c);
            }
        }
        Cow::Owned(adjusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::connect::{Converter, JsonOptions};

    const KEEP: Expand = Expand {
        keep_nulls: true,
        keep_empty_arrays: true,
        names: NameAdjustment::None,
    };

    fn json(expand: Expand, text: &str) -> Option<String> {
        let converter = Converter::Json(JsonOptions {
            schemas: false,
            ..JsonOptions::default()
        });
        let mut out = Vec::new();
        match expand.expand("payload", text) {
            Expanded::Value(schema, data) => {
                let written = converter.convert(&[], Some(&schema), &data, &mut out);
                written.unwrap();
                Some(String::from_utf8(out).unwrap())
            }
            Expanded::NoSchema | Expanded::Text => None,
        }
    }

    #[test]
    fn nulls_and_empty_arrays_are_kept_on_request() {
        let text = r#"{"a":null,"b":[],"c":{"d":null},"e":[null,1],"a2":{}}"#;
        let without = r#"{"c":{},"e":[null,1],"a2":{}}"#;
        let nulls = r#"{"a":null,"c":{"d":null},"e":[null,1],"a2":{}}"#;
        let arrays = r#"{"b":[],"c":{},"e":[null,1],"a2":{}}"#;
        for (keep_nulls, keep_empty_arrays, expected) in [
            (false, false, without),
            (true, false, nulls),
            (false, true, arrays),
            (true, true, text),
        ] {
            let expand = Expand {
                keep_nulls,
                keep_empty_arrays,
                ..KEEP
            };
            assert_eq!(json(expand, text).as_deref(), Some(expected));
        }
    }

    #[test]
    fn values_without_a_schema_stay_texts() {
        for text in [
            "[1,2]",
            "[{\"a\":1}]",
            "{\"a\":[1,\"x\"]}",
            "{\"a\":[1,2.5]}",
            "{\"a\":[1,10000000000]}",
            "{\"a\":[null]}",
            "{\"a\":123456789012345678901234567890}",
            "{\"a\":[{\"b\":1},{\"b\":\"x\"}]}",
            "{\"a\":[{\"x\":1},{\"y\":\"z\"},null]}",
            "{\"a\":[{\"b\":[]},{\"b\":1}]}",
            "{\"\":1}",
            "{\"a\":1",
            " {}",
            "1",
        ] {
            assert_eq!(json(Expand::default(), text), None, "{text}");
        }
        let empty = Expand::default().expand("p", "[]");
        assert!(matches!(empty, Expanded::NoSchema));
    }

    /// The result does not depend on the order of the objects.
    #[test]
    fn objects_in_an_array_share_all_fields() {
        for (text, expected) in [
            (
                r#"{"a":[{"x":1},{"y":"z"}]}"#,
                r#"{"a":[{"x":1,"y":null},{"x":null,"y":"z"}]}"#,
            ),
            (
                r#"{"a":[{"x":1},{"x":null,"y":"z"},{"c":[]},{"c":[1]}],"n":[null,1]}"#,
                r#"{"a":[{"x":1,"y":null,"c":null},{"x":null,"y":"z","c":null},{"x":null,"y":null,"c":[]},{"x":null,"y":null,"c":[1]}],"n":[null,1]}"#,
            ),
            (
                r#"{"a":[{"c":[1]},{"c":[]}]}"#,
                r#"{"a":[{"c":[1]},{"c":[]}]}"#,
            ),
            (
                r#"{"a":[{"b":{"c":null}},{"b":{"c":1}}]}"#,
                r#"{"a":[{"b":{"c":null}},{"b":{"c":1}}]}"#,
            ),
            (
                r#"{"a":[{"b":{"c":[[]]}},{"b":{"c":[[2],[]],"d":1}}]}"#,
                r#"{"a":[{"b":{"c":[[]],"d":null}},{"b":{"c":[[2],[]],"d":1}}]}"#,
            ),
        ] {
            assert_eq!(json(KEEP, text).as_deref(), Some(expected), "{text}");
        }
        let nested = r#"{"a":[{"b":{"c":null}},{"b":{"c":1}},{"b":{"e":[]}},{"b":{"e":[1]}}]}"#;
        let expected = r#"{"a":[{"b":{"c":null,"e":null}},{"b":{"c":1,"e":null}},{"b":{"c":null,"e":[]}},{"b":{"c":null,"e":[1]}}]}"#;
        assert_eq!(json(Expand::default(), nested).as_deref(), Some(expected));
    }

    #[test]
    fn names_are_adjusted_and_keep_their_values() {
        let text = r#"{"a.b":1,"$x-y":2,"3":3,"ok_":4}"#;
        for (names, expected) in [
            (NameAdjustment::Avro, r#"{"a_b":1,"_x_y":2,"_3":3,"ok_":4}"#),
            (
                NameAdjustment::AvroUnicode,
                r#"{"a_u002eb":1,"_u0024x_u002dy":2,"_u0033":3,"ok_u005f":4}"#,
            ),
        ] {
            let expand = Expand {
                names,
                ..Expand::default()
            };
            assert_eq!(json(expand, text).as_deref(), Some(expected));
        }
    }

    #[test]
    fn numbers_and_members_are_read_as_by_jackson() {
        let text = r#"{"a": -0 ,"b":9223372036854775807,"c":1e2,"a":3}"#;
        let expected = r#"{"a":3,"b":9223372036854775807,"c":100.0}"#;
        assert_eq!(json(Expand::default(), text).as_deref(), Some(expected));
        let big = r#"{"b":9223372036854775808}"#;
        assert_eq!(json(Expand::default(), big), None);
        for depth in [499, 500] {
            let text = format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
            assert_eq!(json(KEEP, &text).is_some(), depth == 499);
        }
    }
}
