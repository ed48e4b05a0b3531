//! Headers whose names are in the row: from one column, from two arrays, or from a logical message.

use std::ops::Range;
use std::str;

use serde_json::value::RawValue;
use walrelay_pgoutput::Value;
use walrelay_sink::Header;

use crate::plan::{Columns, PlanError, Role};
use crate::render::connect::{FIRST_USER_TYPE, array, hstore};
use crate::value::json::{each_member, unquote};
use crate::value::{ColumnIndex, Fault, MAX_HEADERS, Malformed, ValueError, value};

/// Types of a column with an object: text, json, varchar, jsonb.
const OBJECTS: [u32; 4] = [25, 114, 1043, 3802];
/// Types of a column with an array: text[], varchar[].
const ARRAYS: [u32; 2] = [1009, 1015];

/// The columns with names and values of headers that follow those of the route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadersFrom {
    /// A JSON object, or an `hstore`.
    Column(String),
    /// Two arrays of the same length.
    Arrays {
        /// The column of the names.
        names: String,
        /// The column of the values.
        values: String,
    },
}

/// The columns of a [`HeadersFrom`] in one table.
pub(crate) enum HeaderColumns {
    Object(ColumnIndex),
    Arrays(ColumnIndex, ColumnIndex),
}

impl HeadersFrom {
    /// Returns the names of the columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Column(name) => (name, None),
            Self::Arrays { names, values } => (names, Some(values)),
        };
        std::iter::once(first).chain(second).map(String::as_str)
    }

    pub(crate) fn compile(&self, columns: &mut Columns<'_>) -> Result<HeaderColumns, PlanError> {
        let mut index = |name: &str, types: &[u32]| {
            let (index, column) = columns.needed(name, || Role::Headers)?;
            let type_oid = columns.base_type(&column).get();
            // The OID of an hstore is another one in each database.
            if type_oid < FIRST_USER_TYPE && !types.contains(&type_oid) {
                return Err(columns.unsupported(name, type_oid, Role::Headers));
            }
            Ok(index)
        };
        Ok(match self {
            Self::Column(name) => HeaderColumns::Object(index(name, &OBJECTS)?),
            Self::Arrays { names, values } => {
                HeaderColumns::Arrays(index(names, &ARRAYS)?, index(values, &ARRAYS)?)
            }
        })
    }
}

/// Names and values of headers, in one buffer.
#[derive(Clone, Default)]
pub(crate) struct HeaderBuffer {
    texts: String,
    places: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl HeaderBuffer {
    pub(crate) fn clear(&mut self) {
        self.texts.clear();
        self.places.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Header<'_>> {
        self.places.iter().map(|(name, value)| Header {
            name: &self.texts[name.clone()],
            value: value.clone().map(|value| self.texts[value].as_bytes()),
        })
    }

    pub(crate) fn push(&mut self, name: &str, value: Option<&str>) {
        let name = self.append(name);
        let value = value.map(|value| self.append(value));
        self.places.push((name, value));
    }

    fn append(&mut self, text: &str) -> Range<usize> {
        let start = self.texts.len();
        self.texts.push_str(text);
        start..self.texts.len()
    }

    /// Adds a header, unless there are too many already.
    fn add(&mut self, name: &str, value: Option<&str>) {
        if self.places.len() <= MAX_HEADERS {
            self.push(name, value);
        }
    }

    /// Reads the headers of a row into the empty buffer.
    pub(crate) fn read(
        &mut self,
        columns: &HeaderColumns,
        values: &[Value<'_>],
    ) -> Result<(), Fault> {
        let text = |index| match value(values, index)? {
            None => Ok(""),
            Some(text) => str::from_utf8(text).map_err(|_| Fault::new(index, ValueError::NotUtf8)),
        };
        let index = match columns {
            HeaderColumns::Object(index) => {
                self.object(text(*index)?)
                    .map_err(|Malformed| Fault::new(*index, ValueError::NotHeaders))?;
                *index
            }
            HeaderColumns::Arrays(names, values) => {
                self.names(text(*names)?)
                    .map_err(|Malformed| Fault::new(*names, ValueError::NotNames))?;
                self.values(text(*values)?)
                    .map_err(|why| Fault::new(*values, why))?;
                *names
            }
        };
        if self.places.len() > MAX_HEADERS {
            return Err(Fault::new(index, ValueError::TooManyHeaders));
        }
        Ok(())
    }

    /// Reads a JSON object, or the text of an `hstore`, which is empty or begins with a quote.
    fn object(&mut self, text: &str) -> Result<(), Malformed> {
        if matches!(text.trim_start().bytes().next(), None | Some(b'"')) {
            return hstore::each(text, |name, value| self.add(&name, value.as_deref()));
        }
        // Some libraries write it for a value that is absent.
        if text.trim() == "null" {
            return Ok(());
        }
        let mut is_text = true;
        let read = each_member(text, |name, raw| match raw.map(RawValue::get) {
            Some(string) if string.starts_with('"') => match unquote(string) {
                Some(value) => self.add(&name, Some(&value)),
                None => is_text = false,
            },
            value => self.add(&name, value),
        });
        (read.is_ok() && is_text).then_some(()).ok_or(Malformed)
    }

    fn names(&mut self, text: &str) -> Result<(), Malformed> {
        let mut all = true;
        items(text, |name| match name {
            Some(name) => self.add(name, None),
            None => all = false,
        })?;
        all.then_some(()).ok_or(Malformed)
    }

    /// Gives each name its value.
    fn values(&mut self, text: &str) -> Result<(), ValueError> {
        let mut count = 0;
        let read = items(text, |value| {
            if count < self.places.len() {
                let value = value.map(|value| self.append(value));
                self.places[count].1 = value;
            }
            count += 1;
        });
        read.map_err(|Malformed| ValueError::NotHeaderValues)?;
        // Of too many names the buffer has only the first.
        if count != self.places.len() && self.places.len() <= MAX_HEADERS {
            return Err(ValueError::OtherLength);
        }
        Ok(())
    }
}

/// Calls `item` with each item of an array; NULL has none.
fn items(text: &str, mut item: impl FnMut(Option<&str>)) -> Result<(), Malformed> {
    if text.is_empty() {
        return Ok(());
    }
    array::each(text, |next| item(next.as_deref()))
}
