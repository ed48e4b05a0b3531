//! The data of a connection string: where and how to connect.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

/// Defines an enum of the values of a parameter, with their spelling in connection strings.
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
            /// Writes the spelling in a connection string.
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

/// The directory of the server's unix socket that is used if no host is given and the directory
/// exists; otherwise `localhost` is used. It is the default of Debian's and Red Hat's packages.
pub const DEFAULT_SOCKET_DIR: &str = "/var/run/postgresql";

/// The port that is used if none is given.
pub const DEFAULT_PORT: u16 = 5432;

/// A parsed connection string: the servers, the login and the parameters of the connection.
///
/// Parsed from a URL (`postgres://user:password@host1:5432,host2/db?sslmode=verify-full`) or the
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
/// `fe-connect.c`. As in libpq, an empty value means "not given". The differences from libpq:
/// - **The environment is not read** (`PGHOST`, `PGPASSWORD`, `PGSERVICE` …): the configuration of
///   a relay names its server. It may name a password file, see [`ConnInfo::password_for`].
/// - `user` must be given; libpq would take the name of the operating system's user.
/// - A parameter given twice is an error; libpq silently takes the last.
/// - A URL with an `@` after the first `?` and before any `/` is an error: libpq and other parsers
///   of URLs disagree about the end of its password. Spaces within a URL are errors.
/// - An unknown parameter is an error, and so is a libpq parameter that would have no effect
///   (`sslcrl`, `requirepeer`, `service` …). Parameters of GSSAPI are ignored; others are accepted
///   with the value that describes what happens anyway (`client_encoding=UTF8` …).
/// - `sslmode=allow` is refused: it tries without encryption first.
/// - With a password, a server that asks for none is refused unless `require_auth` lists `none`, it is
///   on this machine, or its certificate was verified.
/// - `md5` and cleartext passwords are sent only if `require_auth` lists them.
/// - `connect_timeout` is 10 s by default and at least 1 s, so that the next host is tried.
/// - Sockets in the abstract namespace (`@…`) are refused.
#[derive(Clone)]
pub struct ConnInfo {
    /// The servers to try, in this order; never empty. Default: [`DEFAULT_SOCKET_DIR`] if that
    /// directory exists, else `localhost`.
    pub hosts: Vec<Host>,
    /// The role to log in as.
    pub user: String,
    /// The password in the connection string itself. See [`ConnInfo::password_for`].
    pub password: Option<SecretString>,
    /// The database. Default: the name of the role.
    pub dbname: String,
    /// The choice whether to encrypt and what to verify. Ignored for unix sockets.
    pub ssl_mode: SslMode,
    /// The certificate authorities to trust, if the connection string names any.
    pub ssl_root_cert: Option<RootCert>,
    /// The file of the client's certificate chain (PEM); given together with `ssl_key` or not at
    /// all.
    pub ssl_cert: Option<PathBuf>,
    /// The file of the private key of the client's certificate (PEM).
    pub ssl_key: Option<PathBuf>,
    /// The choice whether to bind SCRAM to the TLS connection.
    pub channel_binding: ChannelBinding,
    /// The authentication methods that the client allows. `None`: the default, without `none` if there
    /// is a password and nothing else shows that the server is the right one: neither its certificate
    /// nor that it is on this machine.
    pub require_auth: Option<AuthMethods>,
    /// The condition that makes a server acceptable.
    pub target_session_attrs: TargetSessionAttrs,
    /// The longest time that connecting to one host may take, in whole seconds. Default: 10 s.
    pub connect_timeout: Duration,
    /// TCP keepalives; `None` after `keepalives=0`. Ignored for unix sockets.
    pub keepalives: Option<Keepalives>,
    /// The name shown in `pg_stat_activity` and `pg_stat_replication`. Default: that of
    /// `fallback_application_name`, else `walrelay`.
    pub application_name: String,
    /// Command-line options for the server's process (`-c statement_timeout=0`), passed on
    /// unchanged.
    pub options: Option<String>,
    /// The password file that the connection string names. It must exist when a password is needed.
    pub passfile: Option<PathBuf>,
}

/// Most bytes of a name that the server shows: `NAMEDATALEN` - 1.
const SHOWN_NAME: usize = 63;

impl ConnInfo {
    /// Returns the application name in the form in which every server shows it: 63 bytes at most,
    /// with a question mark for each byte that is no printable ASCII. Sessions send this form, because
    /// servers change other names differently by their version.
    pub fn shown_application_name(&self) -> String {
        let shown = |byte: u8| match byte {
            b' '..=b'~' => char::from(byte),
            _ => '?',
        };
        let bytes = self.application_name.bytes();
        bytes.take(SHOWN_NAME).map(shown).collect()
    }

    /// Returns true if passwords and rows may cross a network unencrypted: TLS is not demanded, and a host
    /// is not known to be this machine.
    pub fn may_be_plain(&self) -> bool {
        let demanded = !matches!(self.ssl_mode, SslMode::Disable | SslMode::Prefer);
        !demanded && self.hosts.iter().any(|host| !host.is_here())
    }
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// The server's name, which its certificate is checked against and which is looked up in the
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
    /// The **directory** of the server's socket. See [`Host::socket_path`].
    Unix(PathBuf),
}

spelled! {
    /// The choice whether to encrypt and what to verify. Ignored for unix sockets.
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
        /// Encrypt, and demand a certificate of a trusted authority, for any name.
        VerifyCa = "verify-ca",
        /// Encrypt, and demand a certificate of a trusted authority for the host's name or address.
        VerifyFull = "verify-full",
    }
}

/// The certificate authorities to trust (`sslrootcert`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RootCert {
    /// The certificates of the operating system (`sslrootcert=system`). Implies and demands
    /// [`SslMode::VerifyFull`], because anybody can get a certificate of such an authority for
    /// *some* name.
    System,
    /// The certificates in this PEM file.
    File(PathBuf),
}

spelled! {
    /// The choice whether to bind SCRAM authentication to the TLS connection (SCRAM-SHA-256-PLUS).
    pub enum ChannelBinding of "disable, prefer or require" {
        /// Never bind it.
        Disable = "disable",
        /// Bind it if the server offers that.
        #[default]
        Prefer = "prefer",
        /// Always bind it; any other way of logging in fails.
        Require = "require",
    }
}

/// The authentication methods that the client allows (`require_auth`).
///
/// By default SCRAM-SHA-256, and no exchange at all (trust, peer or certificate authentication).
/// The cleartext password and its MD5 hash, which is as valuable as the password, are allowed only
/// if they are listed: an impostor could ask for them. A list of negated methods (`!none`) removes
/// methods from the default and never adds any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of four flags, none of which is a state"
)]
pub struct AuthMethods {
    /// SCRAM-SHA-256, with or without channel binding.
    pub scram: bool,
    /// The server may get the MD5 hash of the password.
    pub md5: bool,
    /// The server may get the password itself.
    pub cleartext: bool,
    /// The server may accept the client without asking for a password.
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

/// Selects one of the flags.
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
    /// The condition that makes one of several servers acceptable.
    pub enum TargetSessionAttrs of
        "any, read-write, read-only, primary, standby or prefer-standby" {
        /// The first server that answers.
        #[default]
        Any = "any",
        /// A server whose sessions may write: not in recovery, `default_transaction_read_only` off.
        ReadWrite = "read-write",
        /// A server whose sessions may not write.
        ReadOnly = "read-only",
        /// A server that is not in recovery.
        Primary = "primary",
        /// A server that is in recovery.
        Standby = "standby",
        /// A server that is in recovery if there is any, else the first that answers.
        PreferStandby = "prefer-standby",
    }
}

/// TCP keepalives: probes that detect a dead peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Keepalives {
    /// The time that the connection may be silent before the first probe. Default: 30 s.
    pub idle: Duration,
    /// Time between two probes. Default: 10 s.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is given up. Default: 3.
    pub retries: u32,
}

impl Default for Keepalives {
    /// Detects a dead primary within about a minute; the system's default is two hours.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(30),
            interval: Duration::from_secs(10),
            retries: 3,
        }
    }
}

impl Host {
    /// Returns true if the host is this machine by its address: a unix socket, a loopback address, or
    /// `localhost`.
    fn is_here(&self) -> bool {
        match (&self.hostaddr, &self.address) {
            (Some(ip), _) => ip.to_canonical().is_loopback(),
            (None, HostAddr::Unix(_)) => true,
            (None, HostAddr::Tcp(name)) => {
                let ip: Option<IpAddr> = name.parse().ok();
                name == "localhost" || ip.is_some_and(|ip| ip.to_canonical().is_loopback())
            }
        }
    }

    /// Returns the name or address to resolve and connect to, and the port; `None` for a unix
    /// socket.
    pub fn tcp_target(&self) -> Option<(String, u16)> {
        match (&self.hostaddr, &self.address) {
            (Some(ip), _) => Some((ip.to_string(), self.port)),
            (None, HostAddr::Tcp(name)) => Some((name.clone(), self.port)),
            (None, HostAddr::Unix(_)) => None,
        }
    }

    /// Returns the path of the server's socket, `<directory>/.s.PGSQL.<port>`; `None` for TCP.
    pub fn socket_path(&self) -> Option<PathBuf> {
        match (&self.hostaddr, &self.address) {
            (None, HostAddr::Unix(path)) => Some(path.join(format!(".s.PGSQL.{}", self.port))),
            _ => None,
        }
    }
}

impl fmt::Display for Host {
    /// Writes the host for messages: `db1:5432`, `[::1]:5432`, `/var/run/postgresql/.s.PGSQL.5432`.
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
