//! Walking a JSON value along a schema.

use std::borrow::Cow;
use std::collections::HashMap;

use super::super::{SchemaMismatch, SchemaMismatchAt};
use super::{Branch, Field, Node, Plan, Unit, Uuid, decimal, time};
use crate::template::json::tree::{self, Tree};
use crate::template::json::{self};

/// Whose JSON it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// An event's: as people and Postgres write values.
    Event,
    /// A schema's own: logical types are written as the types beneath, and unions without a branch's
    /// name.
    Default,
}

/// How often a value may be tried against branches of unions, for each byte of it and in any case: where
/// unions are nested in each other, there are exponentially many ways.
const TRIES_PER_BYTE: usize = 4;
const TRIES: usize = 1_000;

/// Appends what the JSON is by the schema.
pub(super) fn text(plan: &Plan, json: &[u8], out: &mut Vec<u8>) -> Result<(), SchemaMismatch> {
    node_of_text(plan, plan.root, json, Mode::Event, out)
}

/// The same by one of the schema's nodes.
pub(super) fn node_of_text(
    plan: &Plan,
    node: usize,
    json: &[u8],
    mode: Mode,
    out: &mut Vec<u8>,
) -> Result<(), SchemaMismatch> {
    let tree = tree::parse(json).map_err(|_| SchemaMismatch::of(SchemaMismatchAt::NotJson))?;
    let mut walk = Walk {
        plan,
        mode,
        tries: TRIES + TRIES_PER_BYTE * json.len(),
        out,
    };
    walk.node(node, &tree)
}

struct Walk<'a> {
    plan: &'a Plan,
    mode: Mode,
    /// Left.
    tries: usize,
    out: &'a mut Vec<u8>,
}

type Done = Result<(), SchemaMismatch>;

fn wants(what: &'static str) -> SchemaMismatch {
    SchemaMismatch::of(SchemaMismatchAt::Wants(what))
}

impl<'a> Walk<'a> {
    fn node(&mut self, place: usize, value: &Tree<'_>) -> Done {
        let plan: &'a Plan = self.plan;
        let Some(node) = plan.nodes.get(place) else {
            return Err(wants("of a type that the schema has"));
        };
        match (node, value) {
            (Node::Null, Tree::Null) => Ok(()),
            (Node::Null, _) => Err(wants("null")),
            (Node::Boolean, Tree::Boolean(value)) => {
                self.out.push(u8::from(*value));
                Ok(())
            }
            (Node::Boolean, _) => Err(wants("a boolean")),
            (Node::Int, _) => self.int(value, "an int"),
            (Node::Long, _) => self.whole(value, "a long"),
            (Node::Float, Tree::Number(text)) => {
                let number = text.parse::<f32>().ok().filter(|number| number.is_finite());
                let number =
                    number.ok_or_else(|| SchemaMismatch::of(SchemaMismatchAt::Range("a float")))?;
                self.out.extend_from_slice(&number.to_le_bytes());
                Ok(())
            }
            (Node::Float, _) => Err(wants("a float")),
            (Node::Double, Tree::Number(text)) => {
                let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
                let number = number
                    .ok_or_else(|| SchemaMismatch::of(SchemaMismatchAt::Range("a double")))?;
                self.out.extend_from_slice(&number.to_le_bytes());
                Ok(())
            }
            (Node::Double, _) => Err(wants("a double")),
            (Node::String, Tree::String(string)) => self.string(string),
            (Node::String, _) => Err(wants("a string")),
            (Node::Bytes, _) => {
                let bytes = bytes(value).ok_or_else(|| wants("bytes"))?;
                self.bytes(&bytes);
                Ok(())
            }
            (Node::Fixed(size), _) => {
                let bytes = bytes(value).ok_or_else(|| wants("bytes"))?;
                self.fixed(&bytes, *size)
            }
            (Node::Enum(symbols), Tree::String(string)) => {
                let text = unescaped(string)?;
                let symbols = symbols.iter();
                let place = symbols
                    .map(|symbol| symbol.as_bytes())
                    .position(|s| s == &*text);
                let place = place.ok_or_else(|| SchemaMismatch::of(SchemaMismatchAt::Symbol))?;
                self.long(place as i64);
                Ok(())
            }
            (Node::Enum(_), _) => Err(wants("a symbol of an enum")),
            (Node::Array(node), Tree::Array(items)) => self.array(*node, items),
            (Node::Array(_), _) => Err(wants("an array")),
            (Node::Map(node), Tree::Object(members)) => self.map(*node, members),
            (Node::Map(_), _) => Err(wants("an object, of a map")),
            (Node::Record(fields), Tree::Object(members)) => self.record(fields, members),
            (Node::Record(_), _) => Err(wants("an object, of a record")),
            (Node::Union(branches), _) => self.union(branches, value),
            (
                Node::Decimal { .. }
                | Node::Uuid(_)
                | Node::Date
                | Node::Time(_)
                | Node::Timestamp(..),
                _,
            ) => self.logical(node, value),
        }
    }

    /// A type that is something else beneath.
    fn logical(&mut self, node: &Node, value: &Tree<'_>) -> Done {
        if self.mode == Mode::Default {
            return match node {
                Node::Date | Node::Time(Unit::Millis) => self.int(value, "an int"),
                Node::Uuid(Uuid::Text) => match value {
                    Tree::String(string) => self.string(string),
                    _ => Err(wants("a string")),
                },
                Node::Decimal {
                    size: Some(size), ..
                } => {
                    let bytes = bytes(value).ok_or_else(|| wants("bytes"))?;
                    self.fixed(&bytes, *size)
                }
                Node::Uuid(Uuid::Fixed) => {
                    let bytes = bytes(value).ok_or_else(|| wants("bytes"))?;
                    self.fixed(&bytes, 16)
                }
                Node::Decimal { .. } | Node::Uuid(Uuid::Bytes) => {
                    let bytes = bytes(value).ok_or_else(|| wants("bytes"))?;
                    self.bytes(&bytes);
                    Ok(())
                }
                _ => self.whole(value, "a long"),
            };
        }
        let string = match value {
            Tree::String(string) => Some(unescaped(string)?),
            _ => None,
        };
        let text = match &string {
            Some(bytes) => Some(
                str::from_utf8(bytes).map_err(|_| SchemaMismatch::of(SchemaMismatchAt::NotJson))?,
            ),
            None => None,
        };
        match (node, text) {
            (
                Node::Decimal {
                    precision,
                    scale,
                    size,
                },
                _,
            ) => {
                let text = match (value, text) {
                    (Tree::Number(text), _) => text,
                    (_, Some(text)) => text,
                    _ => return Err(wants("a decimal")),
                };
                self.decimal(text, *precision, *scale, *size)
            }
            (Node::Uuid(form), text) => {
                let text = text.ok_or_else(|| wants("a uuid"))?;
                self.uuid(text, *form)
            }
            (Node::Date, None) => self.int(value, "a date"),
            (Node::Date, Some(text)) => {
                let days = time::date(text).ok_or_else(|| wants("a date"))?;
                self.long(days);
                Ok(())
            }
            (Node::Time(Unit::Millis), None) => self.int(value, "a time of day"),
            (Node::Time(_), None) => self.whole(value, "a time of day"),
            (Node::Time(unit), Some(text)) => {
                let count = time::time(text, *unit).ok_or_else(|| wants("a time of day"))?;
                self.long(count);
                Ok(())
            }
            (Node::Timestamp(unit, local), Some(text)) => {
                let wanted = if *local {
                    "a timestamp without an offset"
                } else {
                    "a timestamp with an offset"
                };
                let count = time::timestamp(text, *unit, *local).ok_or_else(|| wants(wanted))?;
                self.long(count);
                Ok(())
            }
            (_, _) => self.whole(value, "a timestamp"),
        }
    }

    fn int(&mut self, value: &Tree<'_>, what: &'static str) -> Done {
        let number = whole(value, what)?;
        if i32::try_from(number).is_err() {
            return Err(SchemaMismatch::of(SchemaMismatchAt::Range(what)));
        }
        self.long(number);
        Ok(())
    }

    fn whole(&mut self, value: &Tree<'_>, what: &'static str) -> Done {
        self.long(whole(value, what)?);
        Ok(())
    }

    /// Zigzag, then seven bits a byte, the lowest first.
    fn long(&mut self, number: i64) {
        let mut rest = ((number << 1) ^ (number >> 63)) as u64;
        while rest >= 0x80 {
            self.out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.out.push(rest as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.long(bytes.len() as i64);
        self.out.extend_from_slice(bytes);
    }

    fn fixed(&mut self, bytes: &[u8], size: usize) -> Done {
        if bytes.len() != size {
            return Err(SchemaMismatch::of(SchemaMismatchAt::Size));
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn string(&mut self, string: &[u8]) -> Done {
        let text = unescaped(string)?;
        self.bytes(&text);
        Ok(())
    }

    fn decimal(&mut self, text: &str, precision: usize, scale: usize, size: Option<usize>) -> Done {
        let number = decimal::parse(text).ok_or_else(|| wants("a decimal"))?;
        let digits = || SchemaMismatch::of(SchemaMismatchAt::Digits);
        let unscaled = number.at_scale(scale).ok_or_else(digits)?;
        if decimal::digits(&unscaled) > precision {
            return Err(digits());
        }
        let bytes = unscaled.to_signed_bytes_be();
        let Some(size) = size else {
            self.bytes(&bytes);
            return Ok(());
        };
        let missing = size.checked_sub(bytes.len()).ok_or_else(digits)?;
        let sign = if unscaled < num_bigint::BigInt::ZERO {
            0xff
        } else {
            0
        };
        self.out.resize(self.out.len() + missing, sign);
        self.out.extend_from_slice(&bytes);
        Ok(())
    }

    fn uuid(&mut self, text: &str, form: Uuid) -> Done {
        let hex = |at: usize| {
            let digit = text.as_bytes().get(at).copied().map(char::from)?;
            Some(digit.to_digit(16)? as u8)
        };
        let mut bytes = [0; 16];
        let mut at = 0;
        for (index, byte) in bytes.iter_mut().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                if text.as_bytes().get(at) != Some(&b'-') {
                    return Err(wants("a uuid"));
                }
                at += 1;
            }
            let digits = hex(at).zip(hex(at + 1));
            let (high, low) = digits.ok_or_else(|| wants("a uuid"))?;
            *byte = high << 4 | low;
            at += 2;
        }
        if at != text.len() {
            return Err(wants("a uuid"));
        }
        match form {
            Uuid::Text => self.bytes(text.as_bytes()),
            Uuid::Bytes => self.bytes(&bytes),
            Uuid::Fixed => self.out.extend_from_slice(&bytes),
        }
        Ok(())
    }

    fn array(&mut self, node: usize, items: &[Tree<'_>]) -> Done {
        if !items.is_empty() {
            self.long(items.len() as i64);
            for item in items {
                self.node(node, item).map_err(SchemaMismatch::in_item)?;
            }
        }
        self.long(0);
        Ok(())
    }

    /// Of several members by one name the last counts, as in Postgres' `jsonb`.
    fn map(&mut self, node: usize, members: &[(&[u8], Tree<'_>)]) -> Done {
        let mut last: HashMap<Cow<'_, [u8]>, usize> = HashMap::with_capacity(members.len());
        for (index, (name, _)) in members.iter().enumerate() {
            last.insert(unescaped(name)?, index);
        }
        if !last.is_empty() {
            self.long(last.len() as i64);
            for (index, (name, value)) in members.iter().enumerate() {
                let name = unescaped(name)?;
                if last.get(&name) == Some(&index) {
                    self.bytes(&name);
                    self.node(node, value).map_err(SchemaMismatch::in_member)?;
                }
            }
        }
        self.long(0);
        Ok(())
    }

    fn record(&mut self, fields: &'a [Field], members: &[(&[u8], Tree<'_>)]) -> Done {
        let mut found = 0;
        for field in fields {
            let name = field.name.as_bytes();
            let member = members
                .iter()
                .rev()
                .find(|(known, _)| json::same(known, name));
            let done = match (member, &field.default) {
                (Some((_, value)), _) => {
                    found += 1;
                    self.node(field.node, value)
                }
                (None, Some(default)) => {
                    self.out.extend_from_slice(default);
                    Ok(())
                }
                (None, None) => self.absent(field.node),
            };
            done.map_err(|schema_mismatch| schema_mismatch.in_field(&field.name))?;
        }
        // Fewer than there are: one by an unknown name, unless a name came twice.
        if found < members.len() {
            let known = |(name, _): &(&[u8], Tree<'_>)| {
                fields
                    .iter()
                    .any(|field| json::same(name, field.name.as_bytes()))
            };
            if !members.iter().all(known) {
                return Err(SchemaMismatch::of(SchemaMismatchAt::UnknownMember));
            }
        }
        Ok(())
    }

    /// A field that is not there is null where it may be.
    fn absent(&mut self, place: usize) -> Done {
        let takes_null = match self.plan.nodes.get(place) {
            Some(Node::Null) => true,
            Some(Node::Union(branches)) => self.null_of(branches).is_some(),
            _ => false,
        };
        if takes_null {
            self.node(place, &Tree::Null)
        } else {
            Err(SchemaMismatch::of(SchemaMismatchAt::Missing))
        }
    }

    fn null_of(&self, branches: &[Branch]) -> Option<usize> {
        let is_null =
            |branch: &Branch| matches!(self.plan.nodes.get(branch.node), Some(Node::Null));
        branches.iter().position(is_null)
    }

    fn union(&mut self, branches: &'a [Branch], value: &Tree<'_>) -> Done {
        if *value == Tree::Null {
            let place = self.null_of(branches);
            self.long(place.ok_or_else(|| SchemaMismatch::of(SchemaMismatchAt::NoBranch))? as i64);
            return Ok(());
        }
        if self.mode == Mode::Event
            && let Tree::Object(members) = value
            && let [(name, inner)] = members.as_slice()
            && let Some(place) = branches
                .iter()
                .position(|branch| json::same(name, branch.tag.as_bytes()))
            && let Some(branch) = branches.get(place)
        {
            let tagged = self.attempt(place, branch, inner)?;
            // It may be a record, or a map, with a member that is called like a branch.
            if let Err(schema_mismatch) = tagged {
                return match self.plain(branches, value)? {
                    Ok(()) => Ok(()),
                    Err(_) => Err(schema_mismatch),
                };
            }
            return Ok(());
        }
        self.plain(branches, value)?
    }

    /// The first branch that takes the value; bytes last, which nearly any string is.
    fn plain(&mut self, branches: &'a [Branch], value: &Tree<'_>) -> Result<Done, SchemaMismatch> {
        let raw = |branch: &Branch| {
            let node = self.plan.nodes.get(branch.node);
            matches!(node, Some(Node::Bytes | Node::Fixed(_)))
        };
        let order: Vec<usize> = {
            let first = (0..branches.len()).filter(|at| branches.get(*at).is_some_and(|b| !raw(b)));
            let last = (0..branches.len()).filter(|at| branches.get(*at).is_some_and(raw));
            first.chain(last).collect()
        };
        let mut only = None;
        let mut refused = 0;
        for place in order {
            let Some(branch) = branches.get(place) else {
                continue;
            };
            if matches!(self.plan.nodes.get(branch.node), Some(Node::Null)) {
                continue;
            }
            match self.attempt(place, branch, value)? {
                Ok(()) => return Ok(Ok(())),
                Err(schema_mismatch) => {
                    refused += 1;
                    only = Some(schema_mismatch);
                }
            }
        }
        // Where there is one branch beside null, what it says is what is wrong.
        Ok(Err(only.filter(|_| refused == 1).unwrap_or_else(|| {
            SchemaMismatch::of(SchemaMismatchAt::NoBranch)
        })))
    }

    /// Tries a branch. The outer error ends the search.
    fn attempt(
        &mut self,
        place: usize,
        branch: &'a Branch,
        value: &Tree<'_>,
    ) -> Result<Done, SchemaMismatch> {
        self.tries = self
            .tries
            .checked_sub(1)
            .ok_or_else(|| SchemaMismatch::of(SchemaMismatchAt::Ambiguous))?;
        let start = self.out.len();
        self.long(place as i64);
        match self.node(branch.node, value) {
            Ok(()) => Ok(Ok(())),
            Err(schema_mismatch) if schema_mismatch.what == SchemaMismatchAt::Ambiguous => {
                Err(schema_mismatch)
            }
            Err(schema_mismatch) => {
                self.out.truncate(start);
                Ok(Err(schema_mismatch))
            }
        }
    }
}

fn whole(value: &Tree<'_>, what: &'static str) -> Result<i64, SchemaMismatch> {
    let Tree::Number(text) = value else {
        return Err(wants(what));
    };
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let number = decimal::parse(text);
    match number {
        Some(number) if number.is_whole() => {
            let number = number.whole();
            number.ok_or_else(|| SchemaMismatch::of(SchemaMismatchAt::Range(what)))
        }
        Some(_) => Err(wants(what)),
        None => Err(SchemaMismatch::of(SchemaMismatchAt::Range(what))),
    }
}

/// Avro's JSON form of bytes: a character for each.
fn bytes(value: &Tree<'_>) -> Option<Vec<u8>> {
    let Tree::String(string) = value else {
        return None;
    };
    let text = unescaped(string).ok()?;
    let text = str::from_utf8(&text).ok()?;
    text.chars()
        .map(|c| u8::try_from(u32::from(c)).ok())
        .collect()
}

/// What a string stands for; borrowed where it has no escape.
fn unescaped(string: &[u8]) -> Result<Cow<'_, [u8]>, SchemaMismatch> {
    let inner = string
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""))
        .unwrap_or_default();
    if !inner.contains(&b'\\') {
        return Ok(Cow::Borrowed(inner));
    }
    let mut text = Vec::with_capacity(inner.len());
    json::unescape(string, &mut text).map_err(|_| SchemaMismatch::of(SchemaMismatchAt::NotJson))?;
    Ok(Cow::Owned(text))
}
