//! Encodes a JSON value by a schema.

use std::borrow::Cow;
use std::collections::HashMap;

use num_bigint::BigInt;

use super::node::{Branch, Field, MILLIS, Node, Plan, Uuid};
use super::time;
use crate::plan::{SchemaMismatch, SchemaMismatchAt as At};
use crate::value::decimal::Decimal;
use crate::value::hex_byte;
use crate::value::json::MAX_DEPTH;
use crate::value::json::tree::{self, Tree};

/// The source of the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// An event's: values as Postgres writes them.
    Event,
    /// A schema's own: logical types are written as the types beneath, and unions without a branch's
    /// name.
    Default,
}

/// Attempts of branches of unions, per byte of the value and in total: nested unions have exponentially
/// many ways.
const TRIES_PER_BYTE: usize = 4;
const TRIES: usize = 1_000;

impl Plan {
    /// Appends the encoded form of a JSON text.
    pub(in crate::render::registry) fn encode(
        &self,
        json: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), SchemaMismatch> {
        encode(self, self.root, json, Mode::Event, out)
    }
}

/// Appends what the JSON is by one of the schema's nodes.
pub(super) fn encode(
    plan: &Plan,
    node: usize,
    json: &str,
    mode: Mode,
    out: &mut Vec<u8>,
) -> Result<(), SchemaMismatch> {
    let tree = tree::parse(json, MAX_DEPTH).map_err(|_| At::NotJson)?;
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
type Members<'t> = [(Cow<'t, str>, Tree<'t>)];

impl Walk<'_> {
    fn node(&mut self, place: usize, value: &Tree<'_>) -> Done {
        let plan = self.plan;
        let Some(node) = plan.nodes.get(place) else {
            return Err(At::Wants("of a type that the schema has").into());
        };
        match node.beneath() {
            Some(beneath) if self.mode == Mode::Default => self.of(&beneath, value),
            _ => self.of(node, value),
        }
    }

    fn of(&mut self, node: &Node, value: &Tree<'_>) -> Done {
        match (node, value) {
            (Node::Null, Tree::Null) => {}
            (Node::Boolean, Tree::Boolean(value)) => self.out.push(u8::from(*value)),
            (Node::Int | Node::Date | Node::Time(MILLIS), Tree::Number(text)) => {
                let number = whole(text, node.wanted())?;
                i32::try_from(number).map_err(|_| At::Range(node.wanted()))?;
                self.long(number);
            }
            (Node::Long | Node::Time(_), Tree::Number(text)) => {
                self.long(whole(text, node.wanted())?);
            }
            (Node::Timestamp(..), Tree::Number(text)) => self.long(whole(text, "a timestamp")?),
            (Node::Float, Tree::Number(text)) => match text.parse::<f32>() {
                Ok(it) if it.is_finite() => self.out.extend_from_slice(&it.to_le_bytes()),
                _ => return Err(At::Range(node.wanted()).into()),
            },
            (Node::Double, Tree::Number(text)) => match text.parse::<f64>() {
                Ok(it) if it.is_finite() => self.out.extend_from_slice(&it.to_le_bytes()),
                _ => return Err(At::Range(node.wanted()).into()),
            },
            (Node::String, Tree::String(text)) => self.bytes(text.as_bytes()),
            (Node::Bytes | Node::Fixed(_), Tree::String(text)) => {
                let bytes = latin(text).ok_or(At::Wants(node.wanted()))?;
                match node {
                    Node::Fixed(size) if bytes.len() != *size => return Err(At::Size.into()),
                    Node::Fixed(_) => self.out.extend_from_slice(&bytes),
                    _ => self.bytes(&bytes),
                }
            }
            (Node::Enum(symbols), Tree::String(text)) => {
                let place = symbols.iter().position(|symbol| **symbol == **text);
                self.long(place.ok_or(At::Symbol)? as i64);
            }
            (Node::Array(node), Tree::Array(items)) => return self.array(*node, items),
            (Node::Map(node), Tree::Object(members)) => return self.map(*node, members),
            (Node::Record(fields), Tree::Object(members)) => return self.record(fields, members),
            (Node::Union(branches), _) => return self.union(branches, value),
            (
                Node::Decimal {
                    precision,
                    scale,
                    size,
                },
                Tree::Number(_) | Tree::String(_),
            ) => {
                let text = match value {
                    Tree::String(text) => text,
                    Tree::Number(text) => *text,
                    _ => "",
                };
                return self.decimal(text, *precision, *scale, *size);
            }
            (Node::Uuid(form), Tree::String(text)) => {
                let bytes = uuid(text).ok_or(At::Wants("a uuid"))?;
                match form {
                    Uuid::Text => self.bytes(text.as_bytes()),
                    Uuid::Bytes => self.bytes(&bytes),
                    Uuid::Fixed => self.out.extend_from_slice(&bytes),
                }
            }
            (Node::Date, Tree::String(text)) => {
                self.long(time::date(text).ok_or(At::Wants(node.wanted()))?);
            }
            (Node::Time(unit), Tree::String(text)) => {
                self.long(time::time(text, *unit).ok_or(At::Wants(node.wanted()))?);
            }
            (Node::Timestamp(unit, local), Tree::String(text)) => {
                let count = time::timestamp(text, *unit, *local);
                self.long(count.ok_or(At::Wants(node.wanted()))?);
            }
            (Node::Timestamp(..), _) => return Err(At::Wants("a timestamp").into()),
            _ => return Err(At::Wants(node.wanted()).into()),
        }
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

    fn decimal(&mut self, text: &str, precision: usize, scale: usize, size: Option<usize>) -> Done {
        let number = decimal(text).ok_or(At::Wants("a decimal"))?;
        let scale = i32::try_from(scale).map_err(|_| At::Digits)?;
        let unscaled = number.exactly(scale).ok_or(At::Digits)?;
        let digits = unscaled.magnitude().to_string();
        if unscaled != BigInt::ZERO && digits.len() > precision {
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

    fn array(&mut self, node: usize, items: &[Tree<'_>]) -> Done {
        if !items.is_empty() {
            self.long(items.len() as i64);
            for item in items {
                self.node(node, item)
                    .map_err(|it| it.within(SchemaMismatch::ITEM))?;
            }
        }
        self.long(0);
        Ok(())
    }

    /// The last of several members by one name counts, as in Postgres' `jsonb`.
    fn map(&mut self, node: usize, members: &Members<'_>) -> Done {
        let numbered = || members.iter().enumerate();
        let last: HashMap<&str, usize> = numbered().map(|(at, (name, _))| (&**name, at)).collect();
        if !last.is_empty() {
            self.long(last.len() as i64);
            for (at, (name, value)) in numbered() {
                if last.get(&**name) == Some(&at) {
                    self.bytes(name.as_bytes());
                    self.node(node, value)
                        .map_err(|it| it.within(SchemaMismatch::MEMBER))?;
                }
            }
        }
        self.long(0);
        Ok(())
    }

    fn record(&mut self, fields: &[Field], members: &Members<'_>) -> Done {
        let mut found = 0;
        for field in fields {
            let member = members.iter().rev().find(|(name, _)| *name == *field.name);
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
            done.map_err(|mismatch| mismatch.within(&field.name))?;
        }
        // Fewer than there are: one by an unknown name, unless a name came twice.
        let known = |name: &str| fields.iter().any(|field| *field.name == *name);
        if found < members.len() && !members.iter().all(|(name, _)| known(name)) {
            return Err(At::UnknownMember.into());
        }
        Ok(())
    }

    fn absent(&mut self, place: usize) -> Done {
        let takes_null = match self.plan.nodes.get(place) {
            Some(Node::Null) => true,
            Some(Node::Union(branches)) => self.null_of(branches).is_some(),
            _ => false,
        };
        if takes_null {
            self.node(place, &Tree::Null)
        } else {
            Err(At::Missing.into())
        }
    }

    fn null_of(&self, branches: &[Branch]) -> Option<usize> {
        let is_null =
            |branch: &Branch| matches!(self.plan.nodes.get(branch.node), Some(Node::Null));
        branches.iter().position(is_null)
    }

    fn union(&mut self, branches: &[Branch], value: &Tree<'_>) -> Done {
        if *value == Tree::Null {
            let place = self.null_of(branches);
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
                // The value may be a record, or a map, with a member that is called like a branch.
                Err(mismatch) => self.plain(branches, value)?.or(Err(mismatch)),
            };
        }
        self.plain(branches, value)?
    }

    /// The first branch that takes the value; bytes last, which nearly any string is.
    fn plain(&mut self, branches: &[Branch], value: &Tree<'_>) -> Result<Done, SchemaMismatch> {
        let plan = self.plan;
        let raw = |branch: &Branch| {
            let node = plan.nodes.get(branch.node);
            matches!(node, Some(Node::Bytes | Node::Fixed(_)))
        };
        let numbered = || branches.iter().enumerate();
        let first = numbered().filter(|(_, branch)| !raw(branch));
        let order = first.chain(numbered().filter(|(_, branch)| raw(branch)));
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
        // The error of the only branch beside null is that of the union.
        let only = only.filter(|_| refused == 1);
        Ok(Err(only.unwrap_or(At::NoBranch.into())))
    }

    /// Tries a branch. The outer error ends the search.
    fn attempt(
        &mut self,
        place: usize,
        branch: &Branch,
        value: &Tree<'_>,
    ) -> Result<Done, SchemaMismatch> {
        self.tries = self.tries.checked_sub(1).ok_or(At::Ambiguous)?;
        let start = self.out.len();
        self.long(place as i64);
        match self.node(branch.node, value) {
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
    /// The value that fits, for errors.
    const fn wanted(&self) -> &'static str {
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

    /// The type beneath a logical one.
    const fn beneath(&self) -> Option<Self> {
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

fn whole(text: &str, what: &'static str) -> Result<i64, At> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let number = decimal(text).ok_or(At::Range(what))?;
    let number = number.exactly(0).ok_or(At::Wants(what))?;
    i64::try_from(number).map_err(|_| At::Range(what))
}

/// A JSON number; `None` if the text is not one, or has more digits than any type.
fn decimal(text: &str) -> Option<Decimal> {
    /// No number of a schema has more digits. The limit bounds memory.
    const MAX_DIGITS: usize = 2_000;

    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let begins = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let exponent: i32 = exponent.parse().ok()?;
    let fits = digits <= MAX_DIGITS && exponent.unsigned_abs() as usize <= MAX_DIGITS;
    let number = begins.starts_with(|c: char| c.is_ascii_digit()) && fits;
    text.parse().ok().filter(|_| number)
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    if !text.split('-').map(str::len).eq([8, 4, 4, 4, 12]) {
        return None;
    }
    let mut bytes = [0; 16];
    let mut digits = text.bytes().filter(|byte| *byte != b'-');
    for byte in &mut bytes {
        *byte = hex_byte([digits.next()?, digits.next()?])?;
    }
    Some(bytes)
}

/// Avro's JSON form of bytes: a character for each.
fn latin(text: &str) -> Option<Vec<u8>> {
    let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
    bytes.collect::<Result<_, _>>().ok()
}
