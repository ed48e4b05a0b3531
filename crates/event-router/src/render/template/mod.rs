//! Templates over columns, from which records are made.
//!
//! ```text
//! template   = { literal | "{{" | "}}" | "{" expression "}" }
//! expression = ( column { "|" filter } ) | text
//! column     = name | '"' { any | '""' } '"'               as in SQL, but without folding to lower case
//! text       = "'" { any | "''" } "'"
//! filter     = "lower" | "upper" | "text" | "optional"
//!            | "before" "(" text ")" | "after" "(" text ")" | "replace" "(" text "," text ")"
//!            | "default" "(" text ")" | "json" [ "(" step { "," step } ")" ]
//!            | "lookup" "(" text [ "," ( text | "keep" ) ] ")"
//!            | "map" "(" entry { "," entry } ")"
//! entry      = ( name | text | "default" ) ":" text
//! step       = text | digits                              a member's name, or an item's number from 0
//! ```
//!
//! A template is parsed once ([`Template`]), compiled to indexes of columns once per table
//! (`compile`), and rendered into the router's scratch buffer for each row.
//!
//! The [`TemplateTarget`] of a template decides what NULL means. Within a longer text NULL is a fault,
//! unless the filter `default` replaces it.

mod address;
mod ast;
mod compile;
mod error;
mod filter;
mod parse;
mod preset;
mod templates;

pub use address::{Address, AddressPart};
pub use ast::{Lookups, Member, Object, Template, TemplateTarget, Tokens, ValueTemplate};
pub(crate) use compile::{Compiler, Text};
pub use error::{TemplateError, TemplateProblem};
pub(crate) use filter::base64;
pub use preset::{Preset, PresetValue};
pub use templates::Templates;
