//! Where and how to connect: libpq's connection strings, parsed strictly.

mod build;
mod error;
mod format;
mod info;
mod parameters;
pub(crate) mod passfile;
mod split;
#[cfg(test)]
mod tests;

pub use error::ConnInfoError;
pub use info::{
    AuthMethods, ChannelBinding, ConnInfo, DEFAULT_PORT, DEFAULT_SOCKET_DIR, Host, HostAddr,
    Keepalives, RootCert, SslMode, TargetSessionAttrs,
};
pub use secrecy::SecretString;
