//! Reads the values of a frame, whose bytes may end anywhere.

use super::ProtocolError;

/// The deepest nesting of tables and arrays that is read.
const MAX_DEPTH: u32 = 16;

/// A value of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A text or bytes.
    Bytes(&'a [u8]),
    Integer(i64),
    Boolean(bool),
    Void,
    /// A value of a type that this client has no use for.
    Other,
}

/// Reads values from bytes that may end anywhere.
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], ProtocolError> {
        let split = self.rest.split_at_checked(length);
        let (bytes, rest) = split.ok_or(ProtocolError::Malformed("a frame that ends too early"))?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let bytes = self.take(N)?;
        bytes
            .try_into()
            .map_err(|_| ProtocolError::Malformed("a frame that ends too early"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn short_string(&mut self) -> Result<&'a [u8], ProtocolError> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// Reads a long string, a table or an array: the length in bytes, and the bytes.
    pub(crate) fn long_string(&mut self) -> Result<&'a [u8], ProtocolError> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// Reads the properties of a message up to its id, and with `headers` the table of headers, if there
    /// is one. Returns the flags of the properties, and the id.
    pub(crate) fn properties(
        &mut self,
        headers: impl FnOnce(&mut Self) -> Result<(), ProtocolError>,
    ) -> Result<(u16, Option<&'a [u8]>), ProtocolError> {
        let flags = self.u16()?;
        let has = |bit: u8| flags >> bit & 1 == 1;
        // content-type, content-encoding.
        for bit in [15, 14] {
            if has(bit) {
                self.short_string()?;
            }
        }
        if has(13) {
            headers(self)?;
        }
        // delivery-mode and priority; correlation-id, reply-to and expiration.
        for bit in [12, 11] {
            if has(bit) {
                self.take(1)?;
            }
        }
        for bit in [10, 9, 8] {
            if has(bit) {
                self.short_string()?;
            }
        }
        let message_id = if has(7) {
            Some(self.short_string()?)
        } else {
            None
        };
        Ok((flags, message_id))
    }

    /// Reads a table, and returns the texts that it has under these names.
    pub(super) fn table_texts<const N: usize>(
        &mut self,
        wanted: [&str; N],
    ) -> Result<[Option<&'a [u8]>; N], ProtocolError> {
        let mut texts = [None; N];
        self.table(|name, value| {
            for (wanted, text) in wanted.iter().zip(&mut texts) {
                if name == wanted.as_bytes() {
                    *text = match value {
                        Value::Bytes(bytes) => Some(bytes),
                        _ => None,
                    };
                }
            }
        })?;
        Ok(texts)
    }

    /// Reads a table, and calls `each` with its names and values.
    pub(crate) fn table(
        &mut self,
        mut each: impl FnMut(&'a [u8], Value<'a>),
    ) -> Result<(), ProtocolError> {
        let mut table = Reader {
            rest: self.long_string()?,
        };
        while !table.rest.is_empty() {
            let name = table.short_string()?;
            each(name, table.value(0)?);
        }
        Ok(())
    }

    /// Reads a value of a table.
    fn value(&mut self, depth: u32) -> Result<Value<'a>, ProtocolError> {
        if depth > MAX_DEPTH {
            return Err(ProtocolError::Malformed(
                "a table that is nested too deeply",
            ));
        }
        let length = match self.u8()? {
            b't' => return Ok(Value::Boolean(self.u8()? != 0)),
            b'b' => return Ok(Value::Integer(i8::from_be_bytes(self.array()?).into())),
            b'B' => return Ok(Value::Integer(self.u8()?.into())),
            b's' => return Ok(Value::Integer(i16::from_be_bytes(self.array()?).into())),
            b'u' => return Ok(Value::Integer(self.u16()?.into())),
            b'I' => return Ok(Value::Integer(i32::from_be_bytes(self.array()?).into())),
            b'i' => return Ok(Value::Integer(self.u32()?.into())),
            b'l' | b'L' | b'T' => return self.array().map(i64::from_be_bytes).map(Value::Integer),
            b'V' => return Ok(Value::Void),
            b'S' | b'x' => return self.long_string().map(Value::Bytes),
            b'f' => 4,
            b'D' => 5,
            b'd' => 8,
            b'A' => {
                let mut items = Reader {
                    rest: self.long_string()?,
                };
                while !items.rest.is_empty() {
                    items.value(depth + 1)?;
                }
                return Ok(Value::Other);
            }
            b'F' => {
                let mut table = Reader {
                    rest: self.long_string()?,
                };
                while !table.rest.is_empty() {
                    table.short_string()?;
                    table.value(depth + 1)?;
                }
                return Ok(Value::Other);
            }
            _ => return Err(ProtocolError::Malformed("a value of an unknown type")),
        };
        self.take(length)?;
        Ok(Value::Other)
    }
}
