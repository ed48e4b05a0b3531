//! TLS: which certificates to trust, how to verify a server's, and what can go wrong.

mod context;
mod end_point;
mod error;
mod files;
#[cfg(test)]
mod tests;
mod verify;

pub(crate) use context::TlsContext;
pub(crate) use end_point::tls_server_end_point;
pub use error::TlsError;
