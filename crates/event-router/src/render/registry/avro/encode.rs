//! Encodes a JSON value by a compiled Avro schema.

use std::borrow::Cow;
use std::collections::HashMap;

use num_bigint::BigInt;
use uuid::fmt::Hyphenated;

use super::node::{Branch, Field, MILLIS, Node, Plan, Uuid};
use super::time;
use crate::plan::{SchemaMismatch, SchemaMismatchAt as At};
use crate::value::decimal::Decimal;
use crate::value::json::MAX_DEPTH;
use crate::value::json::tree::{self, Tree};

/// The source of the JSON, which decides how it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// An event: logical types as Postgres writes their values, unions optionally with the branch's
    /// name.
    Event,
    /// A default in a schema: logical types as their underlying types, unions without the branch's
    /// name.
    Default,
}

/// Limits of attempts to encode a value by a branch of a union: per byte of the value, and in
/// addition. The number of combinations of nested unions is exponential.
const TRIES_PER_BYTE: usize = 4;
const TRIES: usize = 1_000;

/// The values that a timestamp accepts, in the error of a value that is not a string.
const TIMESTAMP: &str = "a timestamp";

impl Plan {
    /// Encodes a JSON text and appends the result to `out`.
    pub(in crate::render::registry) fn encode(
        &self,
        json: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), SchemaMismatch> {
        encode(self, self.root, json, Mode::Event, out)
    }
}

/// Encodes a JSON text by one node of the schema and appends the result to `out`.
pub(super) fn encode(
    plan: &Plan,
    node: usize,
    json: &str,
    mode: Mode,
    out: &mut Vec<u8>,
) -> Result<(), SchemaMismatch> {
    let tree = tree::parse(json, MAX_DEPTH).map_err(|_| At::NotJson)?;
    let mut encoder = Encoder {
        plan,
        mode,
        tries: TRIES + TRIES_PER_BYTE * json.len(),
        out,
    };
    encoder.value(node, &tree)
}

struct Encoder<'a> {
    plan: &'a Plan,
    mode: Mode,
    /// Remaining attempts.
    tries: usize,
    out: &'a mut Vec<u8>,
}

type Encoded = Result<(), SchemaMismatch>;
type Members<'t> = [(Cow<'t, str>, Tree<'t>)];

impl Encoder<'_> {
    fn value(&mut self, place: usize, value: &Tree<'_>) -> Encoded {
        let plan = self.plan;
        let Some(node) = plan.nodes.get(place) else {
            return Err(At::Wants("of a type that the schema has").into());
        };
        match node.underlying() {
            Some(underlying) if self.mode == Mode::Default => self.typed(&underlying, value),
            _ => self.typed(node, value),
        }
    }

    fn typed(&mut self, node: &Node, value: &Tree<'_>) -> Encoded {
        match (node, value) {
            (Node::Null, Tree::Null) => Ok(()),
            (Node::Boolean, Tree::Boolean(value)) => {
                self.out.push(u8::from(*value));
                Ok(())
            }
            (Node::Array(node), Tree::Array(items)) => self.array(*node, items),
            (Node::Map(node), Tree::Object(members)) => self.map(*node, members),
            (Node::Record(fields), Tree::Object(members)) => self.record(fields, members),
            (Node::Union(branches), _) => self.union(branches, value),
            (node, Tree::Number(text)) => self.number(node, text),
            (node, Tree::String(text)) => self.string(node, text),
            _ => Err(node.mismatch()),
        }
    }

    fn number(&mut self, node: &Node, text: &str) -> Encoded {
        let out_of_range = || At::Range(node.expected());
        match node {
            Node::Int | Node::Date | Node::Time(MILLIS) => {
                let number = integer(text, node.expected())?;
                i32::try_from(number).map_err(|_| out_of_range())?;
                self.long(number);
            }
            Node::Long | Node::Time(_) => self.long(integer(text, node.expected())?),
            Node::Timestamp(..) => self.long(integer(text, TIMESTAMP)?),
            Node::Float => match text.parse::<f32>() {
                Ok(it) if it.is_finite() => self.out.extend_from_slice(&it.to_le_bytes()),
                _ => return Err(out_of_range().into()),
            },
            Node::Double => match text.parse::<f64>() {
                Ok(it) if it.is_finite() => self.out.extend_from_slice(&it.to_le_bytes()),
                _ => return Err(out_of_range().into()),
            },
            Node::Decimal { .. } => return self.decimal(node, text),
            _ => return Err(node.mismatch()),
        }
        Ok(())
    }

    fn string(&mut self, node: &Node, text: &str) -> Encoded {
        let mismatch = || At::Wants(node.expected());
        match node {
            Node::String => self.bytes(text.as_bytes()),
            Node::Bytes => self.bytes(&latin1_bytes(text).ok_or_else(mismatch)?),
            Node::Fixed(size) => {
                let bytes = latin1_bytes(text).ok_or_else(mismatch)?;
                if bytes.len() != *size {
                    return Err(At::Size.into());
                }
                self.out.extend_from_slice(&bytes);
            }
            Node::Enum(symbols) => {
                let index = symbols.iter().position(|symbol| **symbol == *text);
                self.long(index.ok_or(At::Symbol)? as i64);
            }
            Node::Decimal { .. } => return self.decimal(node, text),
            Node::Uuid(form) => {
                let id: Hyphenated = text.parse().map_err(|_| mismatch())?;
                let bytes = id.as_uuid().as_bytes();
                match form {
                    Uuid::Text => self.bytes(text.as_bytes()),
                    Uuid::Bytes => self.bytes(bytes),
                    Uuid::Fixed => self.out.extend_from_slice(bytes),
                }
            }
            Node::Date => self.long(time::date(text).ok_or_else(mismatch)?),
            Node::Time(unit) => self.long(time::time(text, *unit).ok_or_else(mismatch)?),
            Node::Timestamp(unit, local) => {
                let count = time::timestamp(text, *unit, *local);
                self.long(count.ok_or_else(mismatch)?);
            }
            _ => return Err(node.mismatch()),
        }
        Ok(())
    }

    /// Appends a variable-length integer: zigzag, then seven bits a byte, the lowest first.
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

    fn decimal(&mut self, node: &Node, text: &str) -> Encoded {
        let Node::Decimal {
            precision,
            scale,
            size,
        } = node
        else {
            return Err(node.mismatch());
        };
        let number = decimal(text).ok_or_else(|| node.mismatch())?;
        let scale = i32::try_from(*scale).map_err(|_| At::Digits)?;
        let unscaled = number.exactly(scale).ok_or(At::Digits)?;
        let digits = unscaled.magnitude().to_string();
        if unscaled != BigInt::ZERO && digits.len() > *precision {
            return Err(At::Digits.into());
        }
        let bytes = unscaled.to_signed_bytes_be();
        let Some(size) = size else {
            self.bytes(&bytes);
            return Ok(());
        };
        let missing = size.checked_sub(bytes.len()).ok_or(At::Digits)?;
        let sign = if unscaled < BigInt::ZERO { 0xff } else { 0 };
        self.out.resize(self.out.len() + missing, sign);
        self.out.extend_from_slice(&bytes);
        Ok(())
    }

    fn array(&mut self, node: usize, items: &[Tree<'_>]) -> Encoded {
        if !items.is_empty() {
            self.long(items.len() as i64);
            for item in items {
                self.value(node, item)
                    .map_err(|it| it.within(SchemaMismatch::ITEM))?;
            }
        }
        self.long(0);
        Ok(())
    }

    /// Encodes an object. The last of several members of a name counts, as in Postgres' `jsonb`.
    fn map(&mut self, node: usize, members: &Members<'_>) -> Encoded {
        let numbered = || members.iter().enumerate();
        let last: HashMap<&str, usize> = numbered().map(|(at, (name, _))| (&**name, at)).collect();
        if !last.is_empty() {
            self.long(last.len() as i64);
            for (at, (name, value)) in numbered() {
                if last.get(&**name) == Some(&at) {
                    self.bytes(name.as_bytes());
                    self.value(node, value)
                        .map_err(|it| it.within(SchemaMismatch::MEMBER))?;
                }
            }
        }
        self.long(0);
        Ok(())
    }

    fn record(&mut self, fields: &[Field], members: &Members<'_>) -> Encoded {
        let mut found = 0;
        for field in fields {
            let member = members.iter().rev().find(|(name, _)| *name == *field.name);
            let done = match (member, &field.default) {
                (Some((_, value)), _) => {
                    found += 1;
                    self.value(field.node, value)
                }
                (None, Some(default)) => {
                    self.out.extend_from_slice(default);
                    Ok(())
                }
                (None, None) => self.missing_member(field.node),
            };
            done.map_err(|mismatch| mismatch.within(&field.name))?;
        }
        // A member is left over: it is unknown, unless it repeats the name of a field.
        let known = |name: &str| fields.iter().any(|field| *field.name == *name);
        if found < members.len() && !members.iter().all(|(name, _)| known(name)) {
            return Err(At::UnknownMember.into());
        }
        Ok(())
    }

    fn missing_member(&mut self, place: usize) -> Encoded {
        let takes_null = match self.plan.nodes.get(place) {
            Some(Node::Null) => true,
            Some(Node::Union(branches)) => self.null_branch(branches).is_some(),
            _ => false,
        };
        if takes_null {
            self.value(place, &Tree::Null)
        } else {
            Err(At::Missing.into())
        }
    }

    fn null_branch(&self, branches: &[Branch]) -> Option<usize> {
        let is_null =
            |branch: &Branch| matches!(self.plan.nodes.get(branch.node), Some(Node::Null));
        branches.iter().position(is_null)
    }

    fn union(&mut self, branches: &[Branch], value: &Tree<'_>) -> Encoded {
        if *value == Tree::Null {
            let place = self.null_branch(branches);
            self.long(place.ok_or(At::NoBranch)? as i64);
            return Ok(());
        }
        if self.mode == Mode::Event
            && let Tree::Object(members) = value
            && let [(name, inner)] = members.as_slice()
            && let Some(place) = branches.iter().position(|branch| *branch.tag == **name)
            && let Some(branch) = branches.get(place)
        {
            return match self.attempt(place, branch, inner)? {
                Ok(()) => Ok(()),
                // The value may be a record or a map whose only member is named like a branch.
                Err(mismatch) => self
                    .first_matching_branch(branches, value)?
                    .or(Err(mismatch)),
            };
        }
        self.first_matching_branch(branches, value)?
    }

    /// Encodes by the first branch that accepts the value; bytes last, as they accept almost any
    /// string.
    fn first_matching_branch(
        &mut self,
        branches: &[Branch],
        value: &Tree<'_>,
    ) -> Result<Encoded, SchemaMismatch> {
        let plan = self.plan;
        let is_bytes = |branch: &Branch| {
            let node = plan.nodes.get(branch.node);
            matches!(node, Some(Node::Bytes | Node::Fixed(_)))
        };
        let numbered = || branches.iter().enumerate();
        let first = numbered().filter(|(_, branch)| !is_bytes(branch));
        let order = first.chain(numbered().filter(|(_, branch)| is_bytes(branch)));
        let mut only = None;
        let mut refused = 0;
        for (place, branch) in order {
            if matches!(plan.nodes.get(branch.node), Some(Node::Null)) {
                continue;
            }
            let Err(mismatch) = self.attempt(place, branch, value)? else {
                return Ok(Ok(()));
            };
            refused += 1;
            only = Some(mismatch);
        }
        // If only one branch was tried, its error says more than "no branch".
        let only = only.filter(|_| refused == 1);
        Ok(Err(only.unwrap_or(At::NoBranch.into())))
    }

    /// Tries a branch. The outer error ends the whole search; the inner one is this branch's.
    fn attempt(
        &mut self,
        place: usize,
        branch: &Branch,
        value: &Tree<'_>,
    ) -> Result<Encoded, SchemaMismatch> {
        self.tries = self.tries.checked_sub(1).ok_or(At::Ambiguous)?;
        let start = self.out.len();
        self.long(place as i64);
        match self.value(branch.node, value) {
            Err(mismatch) if mismatch.what == At::Ambiguous => Err(mismatch),
            done => {
                if done.is_err() {
                    self.out.truncate(start);
                }
                Ok(done)
            }
        }
    }
}

impl Node {
    /// Describes the value that the node accepts, for errors.
    const fn expected(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Int => "an int",
            Self::Long => "a long",
            Self::Float => "a float",
            Self::Double => "a double",
            Self::String => "a string",
            Self::Bytes | Self::Fixed(_) => "bytes",
            Self::Enum(_) => "a symbol of an enum",
            Self::Array(_) => "an array",
            Self::Map(_) => "an object, of a map",
            Self::Record(_) => "an object, of a record",
            Self::Union(_) => "of a branch of the union",
            Self::Decimal { .. } => "a decimal",
            Self::Uuid(_) => "a uuid",
            Self::Date => "a date",
            Self::Time(_) => "a time of day",
            Self::Timestamp(_, true) => "a timestamp without an offset",
            Self::Timestamp(_, false) => "a timestamp with an offset",
        }
    }

    /// Creates the error of a JSON value of a type that the node does not accept.
    fn mismatch(&self) -> SchemaMismatch {
        let expected = match self {
            Self::Timestamp(..) => TIMESTAMP,
            _ => self.expected(),
        };
        At::Wants(expected).into()
    }

    /// Returns the underlying type of a logical type.
    const fn underlying(&self) -> Option<Self> {
        Some(match self {
            Self::Date | Self::Time(MILLIS) => Self::Int,
            Self::Time(_) | Self::Timestamp(..) => Self::Long,
            Self::Uuid(Uuid::Text) => Self::String,
            Self::Uuid(Uuid::Fixed) => Self::Fixed(16),
            Self::Uuid(Uuid::Bytes) | Self::Decimal { size: None, .. } => Self::Bytes,
            Self::Decimal {
                size: Some(size), ..
            } => Self::Fixed(*size),
            _ => return None,
        })
    }
}

fn integer(text: &str, what: &'static str) -> Result<i64, At> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let number = decimal(text).ok_or(At::Range(what))?;
    let number = number.exactly(0).ok_or(At::Wants(what))?;
    i64::try_from(number).map_err(|_| At::Range(what))
}

/// Parses a JSON number; `None` if the text is not one, or exceeds `MAX_DIGITS`.
fn decimal(text: &str) -> Option<Decimal> {
    /// Limit of digits and of the exponent, to bound memory. No number for a schema needs as many.
    const MAX_DIGITS: usize = 2_000;

    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let begins = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let exponent: i32 = exponent.parse().ok()?;
    let fits = digits <= MAX_DIGITS && exponent.unsigned_abs() as usize <= MAX_DIGITS;
    let number = begins.starts_with(|c: char| c.is_ascii_digit()) && fits;
    text.parse().ok().filter(|_| number)
}

/// Reads the bytes of a string by Avro's JSON encoding: each character is a byte.
fn latin1_bytes(text: &str) -> Option<Vec<u8>> {
    let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
    bytes.collect::<Result<_, _>>().ok()
}
