//! Commands that show and change nothing.

pub(crate) mod alerts;
mod behind_slot;
pub(crate) mod check;
pub(crate) mod endpoint;
pub(crate) mod route;
pub(crate) mod status;
pub(crate) mod stuck;
pub(crate) mod tail;
pub(crate) mod verify_topic;
pub(crate) mod whereabouts;
