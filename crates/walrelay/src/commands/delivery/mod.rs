//! Commands that send records: the relay, and rows sent again.

mod ended;
mod group;
mod outbox;
pub(crate) mod relay;
pub(crate) mod replay;
pub(crate) mod resend;
pub(crate) mod run;
mod until;
