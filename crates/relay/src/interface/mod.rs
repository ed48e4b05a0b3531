//! The traits that a pipeline's caller implements: source of frames, source of schemas,
//! environment; and their data.

pub(crate) mod environment;
pub(crate) mod schemas;
pub(crate) mod source;
