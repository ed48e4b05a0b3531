//! The traits that a pipeline's caller implements: source of frames, source of schemas,
//! observer; and their data.

pub(crate) mod danger;
pub(crate) mod observer;
pub(crate) mod schemas;
pub(crate) mod source;
