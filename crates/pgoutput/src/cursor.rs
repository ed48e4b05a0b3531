use core::str;

use crate::fault::{Fault, Field};

/// A reader over the unread bytes of a body.
///
/// [`decode`](crate::decode) validates with it, and the iterators over values and columns read with
/// it again, so the two cannot disagree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

/// A fault, located by the distance from the end of the body: a cursor does not know the start.
#[derive(Clone, Copy)]
pub(crate) struct Broken {
    pub(crate) field: Field,
    /// Bytes from the fault to the end of the body.
    pub(crate) left: usize,
    pub(crate) fault: Fault,
}

pub(crate) type Read<T> = Result<T, Broken>;

/// Methods that read a number, each named after its type.
macro_rules! numbers {
    ($($number:ident)*) => {$(
        #[inline]
        pub(crate) fn $number(&mut self, field: Field) -> Read<$number> {
            self.array(field).map($number::from_be_bytes)
        }
    )*};
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the bytes between this cursor and `end`, a later state of it.
    #[inline]
    pub(crate) fn until(self, end: Self) -> &'a [u8] {
        let len = self.rest.len().saturating_sub(end.rest.len());
        self.rest.get(..len).unwrap_or_default()
    }

    /// Creates a [`Broken`] with `fault` at the next byte.
    #[cold]
    pub(crate) fn broken(self, field: Field, fault: Fault) -> Broken {
        Broken {
            field,
            left: self.rest.len(),
            fault,
        }
    }

    #[cold]
    fn truncated(self, field: Field, needed: usize) -> Broken {
        self.broken(
            field,
            Fault::Truncated {
                needed,
                left: self.rest.len(),
            },
        )
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: Field) -> Read<[u8; N]> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated(field, N));
        };
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn bytes(&mut self, field: Field, len: usize) -> Read<&'a [u8]> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.truncated(field, len));
        };
        self.rest = rest;
        Ok(head)
    }

    numbers!(u8 i16 u32 i32 u64 i64);

    /// Reads an Int16 that is a count; negative ones are a fault.
    #[inline]
    pub(crate) fn count(&mut self, field: Field) -> Read<u16> {
        let start = *self;
        let found = self.i16(field)?;
        u16::try_from(found).map_err(|_| {
            start.broken(
                field,
                Fault::Negative {
                    found: found.into(),
                },
            )
        })
    }

    /// Reads an Int32 that is a count or a length; negative ones are a fault.
    #[inline]
    pub(crate) fn length(&mut self, field: Field) -> Read<usize> {
        let start = *self;
        let found = self.i32(field)?;
        usize::try_from(found).map_err(|_| start.broken(field, Fault::Negative { found }))
    }

    /// Reads a byte of flags; a flag that is not in `known` is a fault.
    pub(crate) fn flags(&mut self, field: Field, known: u8) -> Read<u8> {
        let start = *self;
        let found = self.u8(field)?;
        if found & !known == 0 {
            Ok(found)
        } else {
            Err(start.broken(field, Fault::UnknownFlags { found, known }))
        }
    }

    /// Reads a zero-terminated string.
    pub(crate) fn string(&mut self, field: Field) -> Read<&'a str> {
        let start = *self;
        let Some(len) = self.rest.iter().position(|&byte| byte == 0) else {
            return Err(self.broken(field, Fault::Unterminated));
        };
        let text = self.bytes(field, len)?;
        self.u8(field)?;
        str::from_utf8(text).map_err(|error| {
            // Locates the first invalid byte instead of the start of the string.
            let left = start.rest.len().saturating_sub(error.valid_up_to());
            Broken {
                field,
                left,
                fault: Fault::NotUtf8,
            }
        })
    }

    /// Reads a namespace. The server sends an empty string for `pg_catalog`
    /// (`logicalrep_write_namespace` in its `proto.c`).
    pub(crate) fn namespace(&mut self) -> Read<&'a str> {
        self.string(Field::Namespace)
            .map(|name| if name.is_empty() { "pg_catalog" } else { name })
    }

    /// Fails if unread bytes are left.
    #[inline]
    pub(crate) fn finish(self) -> Read<()> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(self.broken(Field::End, Fault::TrailingBytes { count })),
        }
    }
}
