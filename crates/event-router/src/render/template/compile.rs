//! Compiles templates for the columns of one table, and renders them.

use walrelay_pgoutput::Value;

use super::ast::{self, Filter, Lookups, Member, Object, Template, Tokens};
use super::filter::Op;
use crate::plan::{Columns, Field, PlanError, Renderer, Role, Target};
use crate::value::json;
use crate::value::time;
use crate::value::{ColumnIndex, Fault, Part, ValueError, value};

/// A compiled template, whose columns are indexes.
pub(crate) struct Text {
    pieces: Vec<Piece>,
}

enum Piece {
    Literal(String),
    Column(Column),
}

/// A column and the operations on its value.
struct Column {
    index: ColumnIndex,
    ops: Vec<Op>,
    /// Kind of the value after the operations.
    kind: ValueKind,
    optional: bool,
}

/// The kind of a value, which decides how it is written as JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    Text,
    Number,
    Boolean,
    /// A column of type json or jsonb, whose text is JSON.
    Json,
    /// JSON found by the filter `json`; as text, a string is its content.
    Extracted,
    Timestamp,
    Bytes,
}

/// The use of a column's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Part,
    Text,
    Json,
}

/// A compiled JSON object: `"name":` and the value of each member.
pub(super) struct CompiledObject(Vec<(String, CompiledMember)>);

enum CompiledMember {
    Literal(String),
    Text(Text),
    Object(CompiledObject),
}

// === Compiling ===

/// Compiles templates, and collects the columns that they need.
pub(crate) struct Compiler<'c, 'r> {
    pub(crate) columns: &'c mut Columns<'r>,
    pub(crate) lookups: &'c Lookups,
}

impl Compiler<'_, '_> {
    pub(crate) fn text(&mut self, template: &Template, target: &Target) -> Result<Text, PlanError> {
        let using = match target {
            _ if template.pieces.len() != 1 => Use::Text,
            Target::Member(_) => Use::Json,
            Target::Key | Target::Value | Target::Header(_) | Target::CloudEvent(_) => Use::Part,
            _ => Use::Text,
        };
        let pieces = template.pieces.iter().map(|piece| {
            Ok(match piece {
                ast::Piece::Literal(text) => Piece::Literal(text.clone()),
                ast::Piece::Column(name, filters) => {
                    Piece::Column(self.column(name, filters, using, target)?)
                }
            })
        });
        Ok(Text {
            pieces: pieces.collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn field(
        &mut self,
        template: &Template,
        target: Target,
        make: fn(Text) -> Renderer,
    ) -> Result<Field, PlanError> {
        let renderer = make(self.text(template, &target)?);
        Ok(renderer.field(Role::Template(target)))
    }

    pub(super) fn object(
        &mut self,
        object: &Object,
        path: &str,
    ) -> Result<CompiledObject, PlanError> {
        let members = object.members.iter().map(|(name, member)| {
            let path = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            let value = match member {
                Member::Boolean(constant) => CompiledMember::Literal(constant.to_string()),
                Member::Integer(constant) => CompiledMember::Literal(constant.to_string()),
                Member::Object(inner) => CompiledMember::Object(self.object(inner, &path)?),
                Member::Template(template) => {
                    CompiledMember::Text(self.text(template, &Target::Member(path.into()))?)
                }
            };
            Ok((quoted(name) + ":", value))
        });
        Ok(CompiledObject(members.collect::<Result<_, _>>()?))
    }

    fn column(
        &mut self,
        name: &str,
        filters: &[Filter],
        using: Use,
        target: &Target,
    ) -> Result<Column, PlanError> {
        let role = || Role::Template(target.clone());
        let (index, column) = self.columns.needed(name, role)?;
        let type_oid = self.columns.base_type(&column).get();
        let kind = kind(type_oid);
        let mut ops = Vec::new();
        match kind {
            ValueKind::Boolean | ValueKind::Bytes
                if *target == Target::Timestamp && filters.is_empty() =>
            {
                return Err(self.columns.unsupported(name, type_oid, role()));
            }
            ValueKind::Boolean => ops.push(Op::Boolean),
            ValueKind::Bytes => ops.push(Op::Unhex),
            _ => {}
        }
        let mut column = Column {
            index,
            ops,
            kind,
            optional: false,
        };
        for op in filters
            .iter()
            .filter_map(|filter| Op::from_filter(filter, self.lookups))
        {
            if !column.push(op, using) {
                return Err(PlanError::Default {
                    table: self.columns.table().to_owned(),
                    column: name.to_owned(),
                    role: role(),
                    type_oid,
                });
            }
        }
        match using {
            Use::Part if column.kind == ValueKind::Bytes => {}
            Use::Json if column.kind != ValueKind::Bytes => {}
            _ => column.convert_to_text(),
        }
        Ok(column)
    }
}

impl Column {
    /// Adds the operation of a filter. Returns `false` for a default that would make invalid JSON.
    fn push(&mut self, op: Op, using: Use) -> bool {
        match op {
            Op::Text => self.convert_to_text(),
            Op::Optional => self.optional = true,
            Op::Default(text) => match self.default(&text, using) {
                Some(text) => self.ops.push(Op::Default(text)),
                None => return false,
            },
            Op::Json(_) => {
                match self.kind {
                    ValueKind::Json => {}
                    // The bytes are the document.
                    ValueKind::Bytes => self.ops.push(Op::Utf8),
                    _ => self.convert_to_text(),
                }
                self.kind = ValueKind::Extracted;
                self.ops.push(op);
            }
            op => {
                self.convert_to_text();
                self.ops.push(op);
            }
        }
        true
    }

    fn convert_to_text(&mut self) {
        match self.kind {
            ValueKind::Extracted => self.ops.push(Op::Unquote),
            ValueKind::Bytes => self.ops.push(Op::Base64),
            ValueKind::Text
            | ValueKind::Number
            | ValueKind::Boolean
            | ValueKind::Json
            | ValueKind::Timestamp => {}
        }
        self.kind = ValueKind::Text;
    }

    /// Returns the text that replaces NULL; `None` if it would make invalid JSON.
    fn default(&self, text: &str, using: Use) -> Option<String> {
        let fits = match self.kind {
            _ if using != Use::Json => true,
            ValueKind::Number => json::is_number(text.as_bytes()),
            ValueKind::Boolean => matches!(text, "true" | "false"),
            ValueKind::Json => json::is_json(text.as_bytes()),
            ValueKind::Text | ValueKind::Extracted | ValueKind::Timestamp | ValueKind::Bytes => {
                true
            }
        };
        fits.then(|| match self.kind {
            // The result of `json` stays JSON until it is used.
            ValueKind::Extracted => quoted(text),
            _ => text.to_owned(),
        })
    }
}

/// Writes a text as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = Vec::with_capacity(text.len() + 2);
    json::string(&Part::Row(text.as_bytes()), &mut quoted);
    // `string` keeps UTF-8 valid: the escapes are ASCII.
    String::from_utf8_lossy(&quoted).into_owned()
}

/// Returns the kind of a column's type, by its OID in `pg_type.dat`.
const fn kind(type_oid: u32) -> ValueKind {
    match type_oid {
        16 => ValueKind::Boolean,
        17 => ValueKind::Bytes,
        // int8, int2, int4, oid, float4, float8, numeric
        20 | 21 | 23 | 26 | 700 | 701 | 1700 => ValueKind::Number,
        114 | 3802 => ValueKind::Json,
        // date, timestamp, timestamptz
        1082 | 1114 | 1184 => ValueKind::Timestamp,
        _ => ValueKind::Text,
    }
}

// === Rendering ===

impl Text {
    /// Makes one token of the value of each column.
    pub(super) fn make_tokens(&mut self, tokens: Tokens) {
        for piece in &mut self.pieces {
            if let Piece::Column(column) = piece {
                column.ops.push(Op::Token(tokens));
            }
        }
    }

    /// Renders the text unchanged. NULL is Kafka's null, or left out if the column is optional.
    pub(super) fn into_part(self) -> Renderer {
        Renderer::new(self.index(), move |values, scratch| {
            self.render(values, scratch)
        })
    }

    /// Renders the number of a partition. NULL is a fault, unless the column is optional.
    pub(super) fn into_partition(self) -> Renderer {
        let index = self.index();
        Renderer::new(index, move |values, scratch| {
            let part = self.render(values, scratch)?;
            match (&part, part.resolve(scratch)) {
                (Part::Absent, _) => Ok(Part::Null),
                (_, None) => Err(Fault::new(index, ValueError::Null)),
                // librdkafka uses -1 for a partition that it chooses.
                (_, Some([b'-' | b'+', ..])) => Err(Fault::new(index, ValueError::NotANumber)),
                _ => Ok(part),
            }
        })
    }

    /// Renders milliseconds since 1970. NULL stays NULL.
    pub(super) fn into_timestamp(self) -> Renderer {
        let index = self.index();
        Renderer::new(index, move |values, scratch| {
            let part = self.render(values, scratch)?;
            match part.resolve(scratch).map(time::millis) {
                None => Ok(Part::Null),
                Some(None) => Err(Fault::new(index, ValueError::NotATime)),
                Some(Some(millis)) => Ok(Part::printed(millis, scratch)),
            }
        })
    }

    /// Returns the index of the first column.
    pub(crate) fn index(&self) -> ColumnIndex {
        let mut columns = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Column(column) => Some(column.index),
        });
        columns.next().unwrap_or(usize::MAX)
    }

    /// Renders the text. NULL is allowed for a single column, and a fault in a longer text.
    pub(crate) fn render<'t>(
        &self,
        values: &[Value<'t>],
        scratch: &mut Vec<u8>,
    ) -> Result<Part<'t>, Fault> {
        if let [Piece::Column(column)] = &*self.pieces {
            return column.render(values, scratch);
        }
        let start = scratch.len();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => scratch.extend_from_slice(text.as_bytes()),
                Piece::Column(column) => {
                    let mark = scratch.len();
                    let part = column.render(values, scratch)?;
                    if part.resolve(scratch).is_none() {
                        return Err(Fault::new(column.index, ValueError::Null));
                    }
                    move_to(&part, mark, scratch);
                }
            }
        }
        Ok(Part::since(start, scratch))
    }

    /// Appends the value as JSON; returns `false` if the value is left out.
    fn json(&self, values: &[Value<'_>], scratch: &mut Vec<u8>) -> Result<bool, Fault> {
        let mark = scratch.len();
        let part = self.render(values, scratch)?;
        let (index, kind) = match &*self.pieces {
            [Piece::Column(column)] => (column.index, column.kind),
            _ => (self.index(), ValueKind::Text),
        };
        let Some(bytes) = part.resolve(scratch) else {
            if matches!(part, Part::Null) {
                scratch.extend_from_slice(b"null");
            }
            return Ok(matches!(part, Part::Null));
        };
        let quoted = match kind {
            ValueKind::Json | ValueKind::Extracted | ValueKind::Boolean => false,
            // In JSON, NaN and the infinities are not numbers.
            ValueKind::Number => !json::is_number(bytes),
            ValueKind::Text | ValueKind::Timestamp | ValueKind::Bytes => true,
        };
        if !quoted {
            move_to(&part, mark, scratch);
            return Ok(true);
        }
        if std::str::from_utf8(bytes).is_err() {
            return Err(Fault::new(index, ValueError::NotUtf8));
        }
        let start = scratch.len();
        // Only a part of the row is a time in Postgres' format; a default may not be.
        if let (ValueKind::Timestamp, Part::Row(bytes)) = (kind, &part) {
            scratch.push(b'"');
            if time::iso(bytes, scratch) {
                scratch.push(b'"');
            } else {
                scratch.truncate(start);
            }
        }
        if scratch.len() == start {
            json::string(&part, scratch);
        }
        move_to(&Part::since(start, scratch), mark, scratch);
        Ok(true)
    }
}

impl Column {
    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        let mut part = match value(values, self.index)? {
            Some(text) => Part::Row(text),
            None => Part::Null,
        };
        for op in &self.ops {
            part = op
                .apply(part, scratch)
                .map_err(|why| Fault::new(self.index, why))?;
        }
        Ok(match part {
            Part::Null if self.optional => Part::Absent,
            part => part,
        })
    }
}

impl CompiledObject {
    pub(super) fn into_part(self) -> Renderer {
        Renderer::new(usize::MAX, move |values, scratch| {
            let start = scratch.len();
            self.render(values, scratch)?;
            Ok(Part::since(start, scratch))
        })
    }

    fn render(&self, values: &[Value<'_>], scratch: &mut Vec<u8>) -> Result<(), Fault> {
        let start = scratch.len();
        scratch.push(b'{');
        for (name, value) in &self.0 {
            let mark = scratch.len();
            if mark > start + 1 {
                scratch.push(b',');
            }
            scratch.extend_from_slice(name.as_bytes());
            match value {
                CompiledMember::Literal(text) => scratch.extend_from_slice(text.as_bytes()),
                CompiledMember::Object(object) => object.render(values, scratch)?,
                CompiledMember::Text(text) => {
                    if !text.json(values, scratch)? {
                        scratch.truncate(mark);
                    }
                }
            }
        }
        scratch.push(b'}');
        Ok(())
    }
}

/// Moves a part to `mark`, and truncates the buffer after it.
fn move_to(part: &Part<'_>, mark: usize, scratch: &mut Vec<u8>) {
    match part {
        Part::Scratch(range) => {
            let length = range.len();
            scratch.copy_within(range.clone(), mark);
            scratch.truncate(mark + length);
        }
        Part::Row(bytes) => {
            scratch.truncate(mark);
            scratch.extend_from_slice(bytes);
        }
        Part::Null | Part::Absent => scratch.truncate(mark),
    }
}
