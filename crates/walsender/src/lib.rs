//! A client of Postgres' streaming replication protocol: TLS, authentication, framing, feedback.

#![forbid(unsafe_code)]

mod conninfo;
mod tls;

pub use conninfo::{
    AuthMethods, ChannelBinding, ConnInfo, ConnInfoError, DEFAULT_PORT, DEFAULT_SOCKET_DIR, Host,
    HostAddr, Keepalives, RootCert, SecretString, SslMode, TargetSessionAttrs,
};
pub use tls::{TlsContext, TlsError, TlsStream, tls_server_end_point};
