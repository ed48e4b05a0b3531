//! What a pipeline is given and what it reports to: the source of frames, of schemas, the environment;
//! and the data in them.

pub(crate) mod environment;
pub(crate) mod event;
pub(crate) mod schemas;
pub(crate) mod source;
pub(crate) mod table;
