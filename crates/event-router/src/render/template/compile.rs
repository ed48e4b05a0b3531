//! Templates over the columns of one table.

use walrelay_pgoutput::Value;

use super::ast::{self, Filter, Lookups, Member, Object, Template};
use super::filter::Op;
use crate::plan::{Columns, Field, Made, PlanError, Role, Target};
use crate::value::json;
use crate::value::time;
use crate::value::{Fault, Part, ValueError, value};

/// A template whose columns are slots.
pub(crate) struct Text {
    pieces: Vec<Piece>,
}

enum Piece {
    Literal(String),
    Column(Column),
}

/// A column's value and the operations on it.
struct Column {
    slot: usize,
    ops: Vec<Op>,
    kind: Kind,
    optional: bool,
}

/// The kind of a value, which decides its JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Boolean,
    /// A column of JSON: its text is its JSON.
    Json,
    /// Found by the filter `json`: the text of a string is its content.
    Found,
    Timestamp,
    Bytes,
}

/// Whether a value ends as a part by itself, as text, or in JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Part,
    Text,
    Json,
}

/// A JSON object to be built: `"name":`, and what follows.
pub(super) struct Built(Vec<(String, BuiltValue)>);

enum BuiltValue {
    Literal(String),
    Text(Text),
    Object(Built),
}

// === Compiling ===

/// Compiles templates, and notes the columns that they need.
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
        make: fn(Text) -> Made,
    ) -> Result<Field, PlanError> {
        let made = make(self.text(template, &target)?);
        Ok(made.field(Role::Template(target)))
    }

    pub(super) fn object(&mut self, object: &Object, path: &str) -> Result<Built, PlanError> {
        let members = object.members.iter().map(|(name, member)| {
            let path = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            let value = match member {
                Member::Literal(scalar) => BuiltValue::Literal(scalar.to_string()),
                Member::Object(inner) => BuiltValue::Object(self.object(inner, &path)?),
                Member::Template(template) => {
                    BuiltValue::Text(self.text(template, &Target::Member(path.into()))?)
                }
            };
            Ok((quoted(name) + ":", value))
        });
        Ok(Built(members.collect::<Result<_, _>>()?))
    }

    fn column(
        &mut self,
        name: &str,
        filters: &[Filter],
        using: Use,
        target: &Target,
    ) -> Result<Column, PlanError> {
        let role = || Role::Template(target.clone());
        let (slot, column) = self.columns.needed(name, role)?;
        let type_oid = column.type_oid.get();
        let mut ops = Ops {
            kind: kind(type_oid),
            list: Vec::new(),
            optional: false,
        };
        match ops.kind {
            Kind::Boolean | Kind::Bytes if *target == Target::Timestamp && filters.is_empty() => {
                return Err(self.columns.unsupported(name, type_oid, role()));
            }
            Kind::Boolean => ops.list.push(Op::Boolean),
            Kind::Bytes => ops.list.push(Op::Unhex),
            _ => {}
        }
        for op in filters
            .iter()
            .filter_map(|filter| Op::of(filter, self.lookups))
        {
            if !ops.push(op, using) {
                return Err(PlanError::Default {
                    table: self.columns.table().to_owned(),
                    column: name.to_owned(),
                    role: role(),
                    type_oid,
                });
            }
        }
        match using {
            Use::Part if ops.kind == Kind::Bytes => {}
            Use::Json if ops.kind != Kind::Bytes => {}
            _ => ops.become_text(),
        }
        Ok(Column {
            slot,
            ops: ops.list,
            kind: ops.kind,
            optional: ops.optional,
        })
    }
}

/// The operations on a column, added filter by filter.
struct Ops {
    /// Of the value behind the operations so far.
    kind: Kind,
    list: Vec<Op>,
    optional: bool,
}

impl Ops {
    /// One operation more; `false` if it is a default that would break the JSON around the value.
    fn push(&mut self, op: Op, using: Use) -> bool {
        match &op {
            Op::Text => {
                self.become_text();
                return true;
            }
            Op::Optional => {
                self.optional = true;
                return true;
            }
            Op::Default(text) => {
                let Some(text) = self.default(text, using) else {
                    return false;
                };
                self.list.push(Op::Default(text));
                return true;
            }
            Op::Json(_) if self.kind == Kind::Json => {}
            _ => self.become_text(),
        }
        if matches!(op, Op::Json(_)) {
            self.kind = Kind::Found;
        }
        self.list.push(op);
        true
    }

    fn become_text(&mut self) {
        match self.kind {
            Kind::Found => self.list.push(Op::Unquote),
            Kind::Bytes => self.list.push(Op::Base64),
            Kind::Text | Kind::Number | Kind::Boolean | Kind::Json | Kind::Timestamp => {}
        }
        self.kind = Kind::Text;
    }

    /// What replaces NULL; `None` if it would break the JSON around the value.
    fn default(&self, text: &str, using: Use) -> Option<String> {
        let fits = match self.kind {
            _ if using != Use::Json => true,
            Kind::Number => json::is_number(text.as_bytes()),
            Kind::Boolean => matches!(text, "true" | "false"),
            Kind::Json => json::is_json(text.as_bytes()),
            Kind::Text | Kind::Found | Kind::Timestamp | Kind::Bytes => true,
        };
        let text = match self.kind {
            // The result of `json` is JSON until it is used.
            Kind::Found => quoted(text),
            _ => text.to_owned(),
        };
        fits.then_some(text)
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

impl Text {
    /// The text as it is. NULL is Kafka's null, or left out if it is optional.
    pub(super) fn into_part(self) -> Made {
        Made::new(self.slot(), move |values, scratch| {
            self.render(values, scratch)
        })
    }

    /// The number of a partition. NULL is a fault, unless it is optional.
    pub(super) fn into_partition(self) -> Made {
        let slot = self.slot();
        Made::new(slot, move |values, scratch| {
            let part = self.render(values, scratch)?;
            match (&part, part.resolve(scratch)) {
                (Part::Absent, _) => Ok(Part::Null),
                (_, None) => Err(Fault::new(slot, ValueError::Null)),
                // librdkafka takes -1 for a partition of its own choice.
                (_, Some([b'-' | b'+', ..])) => Err(Fault::new(slot, ValueError::NotANumber)),
                _ => Ok(part),
            }
        })
    }

    /// Milliseconds since 1970. NULL is none.
    pub(super) fn into_timestamp(self) -> Made {
        let slot = self.slot();
        Made::new(slot, move |values, scratch| {
            let part = self.render(values, scratch)?;
            match part.resolve(scratch).map(time::millis) {
                None => Ok(Part::Null),
                Some(None) => Err(Fault::new(slot, ValueError::NotATime)),
                Some(Some(millis)) => Ok(Part::printed(millis, scratch)),
            }
        })
    }

    /// Its first column.
    pub(crate) fn slot(&self) -> usize {
        let mut slots = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Column(column) => Some(column.slot),
        });
        slots.next().unwrap_or(usize::MAX)
    }

    /// A lone column may be null. No part of a longer text may be.
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
                        return Err(Fault::new(column.slot, ValueError::Null));
                    }
                    settle(&part, mark, scratch);
                }
            }
        }
        Ok(Part::since(start, scratch))
    }

    /// Appends it as JSON; `false` if it is left out.
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
    pub(super) fn into_part(self) -> Made {
        Made::new(usize::MAX, move |values, scratch| {
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

/// Moves a part to `mark`, and drops everything else behind `mark`.
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
