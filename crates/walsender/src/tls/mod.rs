//! TLS: trusted certificates, verification of the server's certificate, and errors.

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
