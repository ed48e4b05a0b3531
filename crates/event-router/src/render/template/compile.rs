//! Templates over the columns of one table.

use walrelay_pgoutput::Value;

use super::ast::{self, At, Filter, Lookups, Member, Object, Source, Template};
use super::filter::Op;
use crate::plan::{Columns, PlanError, Render, Role, Target};
use crate::value::json;
use crate::value::time;
use crate::value::{Fault, Part, ValueError, value};

/// A template whose columns are slots.
#[derive(Debug)]
pub(crate) struct Text {
    pieces: Box<[Piece]>,
}

#[derive(Debug)]
enum Piece {
    Literal(Box<str>),
    Column(Column),
}

/// A column's value and what is done to it.
#[derive(Debug)]
struct Column {
    slot: usize,
    ops: Box<[Op]>,
    kind: Kind,
    optional: bool,
}

/// What a value is, where JSON is built of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Boolean,
    /// A column of JSON: its text is its JSON.
    Json,
    /// What the filter `json` has found: the text of a string is its content.
    Found,
    Timestamp,
    Bytes,
}

/// Whether a value ends as text, as it is, or in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A part by itself.
    Part,
    /// Of a text with other parts.
    Text,
    /// A member of an object.
    Json,
}

/// What a part of a record is made of.
#[derive(Debug)]
pub(crate) enum Compiled {
    /// The text. NULL is Kafka's null, or left out where it is optional.
    Text(Text),
    /// A JSON object.
    Object(Built),
    /// A number of a partition. NULL is a fault, unless it is optional.
    Partition(Text),
    /// Milliseconds since 1970. NULL is none.
    Timestamp(Text),
}

/// A JSON object to be built: `"name":`, and what follows.
#[derive(Debug)]
pub(crate) struct Built(Box<[(Box<str>, BuiltValue)]>);

#[derive(Debug)]
enum BuiltValue {
    Literal(Box<str>),
    Text(Text),
    Object(Built),
}

// === Compiling ===

/// What compiling needs, and where it notes which columns are needed.
pub(crate) struct Compiler<'c, 'r> {
    pub(crate) columns: &'c mut Columns<'r>,
    pub(crate) lookups: &'c Lookups,
}

impl Compiler<'_, '_> {
    pub(crate) fn text(&mut self, template: &Template, target: &Target) -> Result<Text, PlanError> {
        let lone = template.pieces.len() == 1;
        let using = match target {
            _ if !lone => Use::Text,
            Target::Member(_) => Use::Json,
            Target::Key | Target::Value | Target::Header(_) | Target::CloudEvent(_) => Use::Part,
            Target::Id
            | Target::Topic
            | Target::Partition
            | Target::Timestamp
            | Target::RecordName => Use::Text,
        };
        let mut pieces = Vec::with_capacity(template.pieces.len());
        for piece in &template.pieces {
            pieces.push(match piece {
                ast::Piece::Literal(text) => Piece::Literal(text.as_str().into()),
                ast::Piece::Value(expression) => match &expression.source {
                    Source::Text(text) => Piece::Literal(text.as_str().into()),
                    Source::Column(name) => {
                        Piece::Column(self.column(name, &expression.filters, using, target)?)
                    }
                },
            });
        }
        Ok(Text {
            pieces: pieces.into(),
        })
    }

    pub(super) fn object(&mut self, object: &Object, path: &str) -> Result<Built, PlanError> {
        let mut members = Vec::with_capacity(object.members.len());
        for (name, member) in &object.members {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            let value = match member {
                Member::Literal(scalar) => BuiltValue::Literal(scalar.to_string().into()),
                Member::Object(inner) => BuiltValue::Object(self.object(inner, &path)?),
                Member::Template(template) => {
                    BuiltValue::Text(self.text(template, &Target::Member(path.into()))?)
                }
            };
            members.push(([&quoted(name), ":"].concat().into(), value));
        }
        Ok(Built(members.into()))
    }

    fn column(
        &mut self,
        name: &str,
        filters: &[(At, Filter)],
        using: Use,
        target: &Target,
    ) -> Result<Column, PlanError> {
        let role = || Role::Template(target.clone());
        let found = self.columns.needed(name, role)?;
        let type_oid = found.column.type_oid.get();
        let of_column = kind(type_oid);
        let mut ops = Ops {
            kind: of_column,
            list: Vec::new(),
            optional: false,
        };
        match of_column {
            Kind::Boolean => ops.list.push(Op::Boolean),
            Kind::Bytes => ops.list.push(Op::Unhex),
            _ => {}
        }
        let no_time = matches!(of_column, Kind::Boolean | Kind::Bytes);
        if *target == Target::Timestamp && no_time && filters.is_empty() {
            return Err(self.columns.unsupported(name, type_oid, role()));
        }
        for (_, filter) in filters {
            if !ops.filter(filter, self.lookups, using) {
                return Err(PlanError::Default {
                    table: self.columns.table().to_owned(),
                    column: name.to_owned(),
                    role: role(),
                    type_oid,
                });
            }
        }
        match using {
            Use::Text => ops.become_text(),
            Use::Part if ops.kind != Kind::Bytes => ops.become_text(),
            Use::Json if ops.kind == Kind::Bytes => ops.become_text(),
            Use::Part | Use::Json => {}
        }
        Ok(Column {
            slot: found.slot,
            ops: ops.list.into(),
            kind: ops.kind,
            optional: ops.optional,
        })
    }
}

/// What is done to a column, filter by filter.
struct Ops {
    /// What the value is by now.
    kind: Kind,
    list: Vec<Op>,
    optional: bool,
}

impl Ops {
    /// One filter more; `false` where its default would break what is built of the value.
    fn filter(&mut self, filter: &Filter, lookups: &Lookups, using: Use) -> bool {
        match filter {
            Filter::Text => self.become_text(),
            Filter::Json(_) => {
                if self.kind != Kind::Json {
                    self.become_text();
                }
                self.list.push(Op::Filter(filter.clone()));
                self.kind = Kind::Found;
            }
            Filter::Lookup { table, otherwise } => {
                let table = lookups.get(table).cloned().unwrap_or_default();
                self.text(Op::Lookup(table, otherwise.clone()));
            }
            Filter::Default(text) => match self.default(text, using) {
                Some(op) => self.list.push(op),
                None => return false,
            },
            Filter::Optional => self.optional = true,
            filter => self.text(Op::Filter(filter.clone())),
        }
        true
    }

    /// An operation on text, with text for a result.
    fn text(&mut self, op: Op) {
        self.become_text();
        self.list.push(op);
    }

    fn become_text(&mut self) {
        match self.kind {
            Kind::Found => self.list.push(Op::Unquote),
            Kind::Bytes => self.list.push(Op::Base64),
            Kind::Text | Kind::Number | Kind::Boolean | Kind::Json | Kind::Timestamp => {}
        }
        self.kind = Kind::Text;
    }

    /// Instead of NULL; `None` where such a text would break what is built of it.
    fn default(&self, text: &str, using: Use) -> Option<Op> {
        let fits = match self.kind {
            _ if using != Use::Json => true,
            Kind::Number => json::is_number(text.as_bytes()),
            Kind::Boolean => matches!(text, "true" | "false"),
            Kind::Json => json::is_json(text.as_bytes()),
            Kind::Text | Kind::Found | Kind::Timestamp | Kind::Bytes => true,
        };
        let text = match self.kind {
            // What `json` finds is JSON until it is used.
            Kind::Found => quoted(text),
            _ => text.to_owned(),
        };
        fits.then_some(Op::Filter(Filter::Default(text)))
    }
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = Vec::with_capacity(text.len() + 2);
    json::string(&Part::Row(text.as_bytes()), &mut quoted);
    // Escapes are ASCII.
    String::from_utf8_lossy(&quoted).into_owned()
}

/// By the OIDs of `pg_type.dat`.
const fn kind(type_oid: u32) -> Kind {
    match type_oid {
        16 => Kind::Boolean,
        17 => Kind::Bytes,
        // int8, int2, int4, oid, float4, float8, numeric
        20 | 21 | 23 | 26 | 700 | 701 | 1700 => Kind::Number,
        114 | 3802 => Kind::Json,
        // date, timestamp, timestamptz
        1082 | 1114 | 1184 => Kind::Timestamp,
        _ => Kind::Text,
    }
}

// === Rendering ===

impl Render for Compiled {
    fn slot(&self) -> usize {
        match self {
            Self::Text(text) | Self::Partition(text) | Self::Timestamp(text) => text.slot(),
            Self::Object(_) => usize::MAX,
        }
    }

    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        match self {
            Self::Text(text) => text.render(values, scratch),
            Self::Object(object) => {
                let start = scratch.len();
                object.render(values, scratch)?;
                Ok(Part::since(start, scratch))
            }
            Self::Partition(text) => {
                let part = text.render(values, scratch)?;
                match &part {
                    Part::Absent => return Ok(Part::Null),
                    Part::Null => return Err(Fault::new(text.slot(), ValueError::Null)),
                    Part::Row(_) | Part::Scratch(_) => {}
                }
                // librdkafka takes -1 for a partition of its own choice.
                match part.resolve(scratch) {
                    Some([b'-' | b'+', ..]) => Err(Fault::new(text.slot(), ValueError::NotANumber)),
                    _ => Ok(part),
                }
            }
            Self::Timestamp(text) => {
                let part = text.render(values, scratch)?;
                let Some(bytes) = part.resolve(scratch) else {
                    return Ok(Part::Null);
                };
                let millis = time::millis(bytes)
                    .ok_or_else(|| Fault::new(text.slot(), ValueError::NotATime))?;
                Ok(Part::printed(millis, scratch))
            }
        }
    }
}

impl Render for Text {
    /// The first column that has a part in it.
    fn slot(&self) -> usize {
        let mut slots = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Column(column) => Some(column.slot),
        });
        slots.next().unwrap_or(usize::MAX)
    }

    /// Where only a column stands there, what is made of it, which may be null; else a text, of
    /// which no part may be.
    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
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
                        return Err(Fault::new(column.slot, ValueError::Null));
                    }
                    settle(&part, mark, scratch);
                }
            }
        }
        Ok(Part::since(start, scratch))
    }
}

impl Text {
    /// Appends it as JSON; `false` where it is to be left out.
    fn json(&self, values: &[Value<'_>], scratch: &mut Vec<u8>) -> Result<bool, Fault> {
        let mark = scratch.len();
        let part = self.render(values, scratch)?;
        let (slot, kind) = match &*self.pieces {
            [Piece::Column(column)] => (column.slot, column.kind),
            _ => (self.slot(), Kind::Text),
        };
        let Some(bytes) = part.resolve(scratch) else {
            if matches!(part, Part::Null) {
                scratch.extend_from_slice(b"null");
            }
            return Ok(matches!(part, Part::Null));
        };
        let quoted = match kind {
            Kind::Json | Kind::Found | Kind::Boolean => false,
            // NaN and the infinities are no numbers in JSON.
            Kind::Number => !json::is_number(bytes),
            Kind::Text | Kind::Timestamp | Kind::Bytes => true,
        };
        if !quoted {
            settle(&part, mark, scratch);
            return Ok(true);
        }
        if std::str::from_utf8(bytes).is_err() {
            return Err(Fault::new(slot, ValueError::NotUtf8));
        }
        let start = scratch.len();
        // A default is not a time that Postgres has printed.
        if let (Kind::Timestamp, Part::Row(bytes)) = (kind, &part) {
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
        settle(&Part::since(start, scratch), mark, scratch);
        Ok(true)
    }
}

impl Column {
    fn render<'t>(&self, values: &[Value<'t>], scratch: &mut Vec<u8>) -> Result<Part<'t>, Fault> {
        let mut part = match value(values, self.slot)? {
            Some(text) => Part::Row(text),
            None => Part::Null,
        };
        for op in &self.ops {
            part = op
                .apply(part, scratch)
                .map_err(|why| Fault::new(self.slot, why))?;
        }
        Ok(match part {
            Part::Null if self.optional => Part::Absent,
            part => part,
        })
    }
}

impl Built {
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
                BuiltValue::Literal(text) => scratch.extend_from_slice(text.as_bytes()),
                BuiltValue::Object(object) => object.render(values, scratch)?,
                BuiltValue::Text(text) => {
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

/// Brings a part to `mark`, the end of what is to stay of the buffer, and clears away what else was
/// appended meanwhile.
fn settle(part: &Part<'_>, mark: usize, scratch: &mut Vec<u8>) {
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
