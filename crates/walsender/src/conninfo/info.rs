//! What a connection string says: where and how to connect.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

/// An enum of the values that a parameter can have, with their spelling in connection strings.
macro_rules! spelled {
    ($(#[$meta:meta])* pub enum $name:ident of $expected:literal {
        $($(#[$value_meta:meta])* $variant:ident = $text:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name {
            $($(#[$value_meta])* $variant,)+
        }

        impl Spelled for $name {
            const EXPECTED: &'static str = $expected;
            const SPELLINGS: &'static [(&'static str, Self)] = &[$(($text, Self::$variant)),+];
        }

        impl fmt::Display for $name {
            /// As written in a connection string.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text),+
                })
            }
        }
    };
}

pub(super) trait Spelled: Copy + Default + PartialEq + 'static {
    /// All spellings, as an error lists them.
    const EXPECTED: &'static str;
    const SPELLINGS: &'static [(&'static str, Self)];
}

/// The directory of the server's unix socket that is assumed when no host is named, if it exists;
/// `localhost` otherwise. It is the default of Debian's and Red Hat's packages.
pub const DEFAULT_SOCKET_DIR: &str = "/var/run/postgresql";

/// The port assumed when none is named.
pub const DEFAULT_PORT: u16 = 5432;

/// Where and how to connect.
///
/// Made from a URL (`postgres://user:password@host1:5432,host2/db?sslmode=verify-full`) or the
/// keyword form (`host=db user=relay password='it\'s'`) by [`FromStr`](std::str::FromStr).
///
/// ```
/// use walrelay_walsender::{ConnInfo, SslMode};
/// let info: ConnInfo = "postgres://relay@db1,db2:6432/app?sslmode=verify-full".parse()?;
/// assert_eq!(info.hosts.len(), 2);
/// assert_eq!(info.hosts[0].port, 5432);
/// assert_eq!(info.ssl_mode, SslMode::VerifyFull);
/// # Ok::<(), walrelay_walsender::ConnInfoError>(())
/// ```
///
/// Source: PostgreSQL documentation, "Connection Strings" and "Parameter Key Words" (libpq), and
/// `fe-connect.c`. An empty value means "not given", as there. The differences from libpq:
/// - **No environment is read** (`PGHOST`, `PGPASSWORD`, `PGSERVICE` …): the configuration of a relay
///   names its server. A password file may be named, see [`ConnInfo::password_for`].
/// - `user` must be given; libpq would take the name of the operating system's user.
/// - A parameter given twice is an error; libpq silently takes the last.
/// - A URL in which an `@` comes after the first `?` but before any `/` is an error: libpq and other
///   readers of URLs disagree on where its password ends. Spaces within a URL are errors.
/// - An unknown parameter is an error, and so is a libpq parameter that would be obeyed only in
///   appearance (`sslcrl`, `requirepeer`, `service` …). Parameters of GSSAPI are ignored; others are
///   accepted at the value that describes what happens anyway (`client_encoding=UTF8` …).
/// - `sslmode=allow` is refused: it tries without encryption first.
/// - `md5` and cleartext passwords are answered only when `require_auth` lists them.
/// - `connect_timeout` is 10 s by default and at least 1 s, so that the next host has its turn.
/// - Sockets in the abstract namespace (`@…`) are refused.
#[derive(Clone)]
pub struct ConnInfo {
    /// The servers to try, in this order; never empty. Default: [`DEFAULT_SOCKET_DIR`] if that
    /// directory exists, else `localhost`.
    pub hosts: Vec<Host>,
    /// The role to log in as.
    pub user: String,
    /// The password written in the connection string itself. See [`ConnInfo::password_for`].
    pub password: Option<SecretString>,
    /// The database. Default: the name of the role.
    pub dbname: String,
    /// Whether to encrypt and what to verify. It does not concern unix sockets.
    pub ssl_mode: SslMode,
    /// Which certificate authorities to trust, if the connection string says so.
    pub ssl_root_cert: Option<RootCert>,
    /// The client's certificate chain (PEM); given together with `ssl_key` or not at all.
    pub ssl_cert: Option<PathBuf>,
    /// The private key of the client's certificate (PEM).
    pub ssl_key: Option<PathBuf>,
    /// Whether SCRAM is to be bound to the TLS connection.
    pub channel_binding: ChannelBinding,
    /// Which authentication exchanges the client takes part in.
    pub require_auth: AuthMethods,
    /// Which of the servers will do.
    pub target_session_attrs: TargetSessionAttrs,
    /// How long connecting to one host may take, in whole seconds. Default: 10 s.
    pub connect_timeout: Duration,
    /// TCP keepalives; `None` after `keepalives=0`. They do not concern unix sockets.
    pub keepalives: Option<Keepalives>,
    /// The name shown in `pg_stat_activity` and `pg_stat_replication`. Default: that of
    /// `fallback_application_name`, else `walrelay`.
    pub application_name: String,
    /// Command-line options for the server's process (`-c statement_timeout=0`), as they are.
    pub options: Option<String>,
    /// A password file named by the connection string. It must exist.
    pub passfile: Option<PathBuf>,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// The server's name: what its certificate is checked against and what is looked up in the
    /// password file.
    pub address: HostAddr,
    /// The IP address to connect to instead of resolving the name (`hostaddr`).
    pub hostaddr: Option<IpAddr>,
    /// The TCP port, or the number in the socket's file name.
    pub port: u16,
}

/// The name of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostAddr {
    /// A host name or an IP address (IPv6 without brackets).
    Tcp(String),
    /// The **directory** in which the server's socket lies. See [`Host::socket_path`].
    Unix(PathBuf),
}

spelled! {
    /// Whether to encrypt and what to verify. It does not concern unix sockets.
    ///
    /// Source: PostgreSQL documentation, "SSL Support", table "SSL Mode Descriptions".
    pub enum SslMode of "disable, prefer, require, verify-ca or verify-full" {
        /// Never encrypt.
        Disable = "disable",
        /// Encrypt if the server can. Protects from passive listeners only.
        #[default]
        Prefer = "prefer",
        /// Encrypt or fail. The certificate is verified only if a root certificate is given.
        Require = "require",
        /// Encrypt, and demand a certificate of a trusted authority, for whatever name.
        VerifyCa = "verify-ca",
        /// Encrypt, and demand a certificate of a trusted authority for the host's name or address.
        VerifyFull = "verify-full",
    }
}

/// Which certificate authorities to trust (`sslrootcert`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RootCert {
    /// Those of the operating system (`sslrootcert=system`); implies and demands
    /// [`SslMode::VerifyFull`], as anybody can get a certificate from those for *some* name.
    System,
    /// Those in this PEM file.
    File(PathBuf),
}

spelled! {
    /// Whether SCRAM authentication is to be bound to the TLS connection (SCRAM-SHA-256-PLUS).
    pub enum ChannelBinding of "disable, prefer or require" {
        /// Never.
        Disable = "disable",
        /// If the server offers it.
        #[default]
        Prefer = "prefer",
        /// Always; any other way of logging in fails.
        Require = "require",
    }
}

/// Which authentication exchanges the client takes part in (`require_auth`).
///
/// By default SCRAM-SHA-256 and no exchange at all (trust, peer or certificate authentication). The
/// cleartext password and its MD5 hash, which is as good as the password, must be listed to be
/// allowed: an impostor could ask for them. A list of negated methods (`!none`) takes from the default
/// and never adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of four flags, none of which is a state"
)]
pub struct AuthMethods {
    /// SCRAM-SHA-256, with or without channel binding.
    pub scram: bool,
    /// The server may have the MD5 hash of the password.
    pub md5: bool,
    /// The server may have the password itself.
    pub cleartext: bool,
    /// The server may let the client in without asking for a password.
    pub none: bool,
}

impl Default for AuthMethods {
    fn default() -> Self {
        Self {
            scram: true,
            md5: false,
            cleartext: false,
            none: true,
        }
    }
}

/// One of the flags.
type Method = fn(&mut AuthMethods) -> &mut bool;

impl AuthMethods {
    /// The methods as `require_auth` names them.
    pub(super) const NAMES: [(&str, Method); 4] = [
        ("scram-sha-256", |methods| &mut methods.scram),
        ("md5", |methods| &mut methods.md5),
        ("password", |methods| &mut methods.cleartext),
        ("none", |methods| &mut methods.none),
    ];
}

spelled! {
    /// Which of several servers will do.
    pub enum TargetSessionAttrs of
        "any, read-write, read-only, primary, standby or prefer-standby" {
        /// The first that answers.
        #[default]
        Any = "any",
        /// One whose sessions may write: not in recovery, `default_transaction_read_only` off.
        ReadWrite = "read-write",
        /// One whose sessions may not write.
        ReadOnly = "read-only",
        /// One that is not in recovery.
        Primary = "primary",
        /// One that is in recovery.
        Standby = "standby",
        /// One that is in recovery if there is any, else the first that answers.
        PreferStandby = "prefer-standby",
    }
}

/// When TCP is to ask whether the other side is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Keepalives {
    /// How long the connection may be silent before the first probe. Default: 30 s.
    pub idle: Duration,
    /// Between two probes. Default: 10 s.
    pub interval: Duration,
    /// After how many unanswered probes the connection is given up. Default: 3.
    pub retries: u32,
}

impl Default for Keepalives {
    /// A relay must notice within a minute that the primary is gone; the system's default is two hours.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(30),
            interval: Duration::from_secs(10),
            retries: 3,
        }
    }
}

impl Host {
    /// What to hand to a resolver and connect to, with the port; `None` for a unix socket.
    pub fn tcp_target(&self) -> Option<(String, u16)> {
        match (&self.hostaddr, &self.address) {
            (Some(ip), _) => Some((ip.to_string(), self.port)),
            (None, HostAddr::Tcp(name)) => Some((name.clone(), self.port)),
            (None, HostAddr::Unix(_)) => None,
        }
    }

    /// The server's socket, `<directory>/.s.PGSQL.<port>`; `None` for TCP.
    pub fn socket_path(&self) -> Option<PathBuf> {
        match (&self.hostaddr, &self.address) {
            (None, HostAddr::Unix(path)) => Some(path.join(format!(".s.PGSQL.{}", self.port))),
            _ => None,
        }
    }
}

impl fmt::Display for Host {
    /// For messages: `db1:5432`, `[::1]:5432`, `/var/run/postgresql/.s.PGSQL.5432`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.socket_path() {
            return write!(f, "{}", path.display());
        }
        match &self.address {
            HostAddr::Tcp(name) if name.contains(':') => write!(f, "[{name}]:{}", self.port)?,
            HostAddr::Tcp(name) => write!(f, "{name}:{}", self.port)?,
            HostAddr::Unix(path) => write!(f, "{}:{}", path.display(), self.port)?,
        }
        match (&self.hostaddr, &self.address) {
            (Some(ip), HostAddr::Tcp(name)) if ip.to_string() == *name => Ok(()),
            (Some(ip), _) => write!(f, " ({ip})"),
            (None, _) => Ok(()),
        }
    }
}
