use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Creates the identifier with this number.
            pub const fn new(number: u32) -> Self {
                Self(number)
            }

            /// Returns the identifier as a number.
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// A transaction's number (`xid`). It wraps around: compare for equality only.
    Xid
}
number! {
    /// The OID of a table as a Relation message announces it (`pg_class.oid`).
    RelationId
}
number! {
    /// The OID of a column's type (`pg_type.oid`). Those below 16384 are fixed by Postgres.
    TypeOid
}
