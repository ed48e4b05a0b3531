use std::{
    fmt::{self, Write as _},
    fs,
    io::{self, Read as _},
    path::Path,
    process::{Command, Stdio},
};

use super::{
    Account, Postgres, PostgresBinaries, Scratch, ThrowawayError,
    account::run_as,
    files::{make_dir, prepare_environment, setting_line, write_private},
    postgres::SUPERUSER,
};

impl Postgres {
    /// The server to come, with defaults that suit a relay's tests.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

/// How `pg_hba.conf` admits clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Anyone as anyone.
    Trust,
    /// A password, by SCRAM-SHA-256.
    ScramSha256,
    /// A password, by MD5 or, where the role's is stored so, by SCRAM. The superuser's is stored as
    /// MD5 if either way in is this one.
    Md5,
    /// A password in clear text.
    Password,
    /// Nobody.
    Reject,
}

impl Auth {
    fn method(self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::ScramSha256 => "scram-sha-256",
            Self::Md5 => "md5",
            Self::Password => "password",
            Self::Reject => "reject",
        }
    }
}

/// What a [`Postgres`] is to be like. The defaults suit a relay's tests.
#[derive(Clone)]
#[must_use]
pub struct Builder {
    binaries: Option<PostgresBinaries>,
    settings: Vec<(String, String)>,
    hba: Vec<String>,
    files: Vec<(String, Vec<u8>)>,
    password: Option<String>,
    tcp: bool,
    socket_auth: Auth,
    tcp_auth: Auth,
    fast: bool,
}

/// Without the password and the contents of files.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("binaries", &self.binaries)
            .field("settings", &self.settings)
            .field("hba", &self.hba)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            binaries: None,
            settings: Vec::new(),
            hba: Vec::new(),
            files: Vec::new(),
            password: None,
            tcp: true,
            socket_auth: Auth::Trust,
            tcp_auth: Auth::ScramSha256,
            fast: false,
        }
    }
}

impl Builder {
    /// The server to run. Default: what [`PostgresBinaries::find`] finds.
    pub fn binaries(mut self, binaries: PostgresBinaries) -> Self {
        self.binaries = Some(binaries);
        self
    }

    /// A line of `postgresql.conf`; the value is quoted here. Later ones override earlier ones, and
    /// the defaults: `wal_level=logical`, `max_wal_senders=20`, `max_replication_slots=20`,
    /// `dynamic_shared_memory_type=mmap`.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// A line of `pg_hba.conf`, before those [`auth`](Self::auth) makes: the first that fits counts.
    pub fn hba(mut self, line: impl Into<String>) -> Self {
        self.hba.push(line.into());
        self
    }

    /// A file in the data directory, readable by the server only, such as `server.key` and
    /// `server.crt` for `ssl=on`.
    pub fn file(mut self, name: impl Into<String>, contents: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), contents.into()));
        self
    }

    /// The password of the superuser `postgres`. Default: a random one, found in the URLs.
    pub fn superuser_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Whether to listen at 127.0.0.1, on a free port. Default: yes.
    pub fn tcp(mut self, tcp: bool) -> Self {
        self.tcp = tcp;
        self
    }

    /// How to admit clients. Default: [`Auth::Trust`] on the Unix socket (its directory is private)
    /// and [`Auth::ScramSha256`] over TCP.
    pub fn auth(mut self, socket: Auth, tcp: Auth) -> Self {
        self.socket_auth = socket;
        self.tcp_auth = tcp;
        self
    }

    /// Without fsync and full-page writes: for large loads in tests. The data survive
    /// [`Postgres::kill`], though not a crash of the machine. Commits still wait for the WAL to be
    /// written, because a walsender sends only what has been.
    pub fn fast(mut self) -> Self {
        self.fast = true;
        self
    }

    /// Makes a data directory, starts the server and waits until it accepts connections.
    ///
    /// # Errors
    /// No server found; a setting that cannot be written; `initdb` or the server failed, with what
    /// they said; not ready in time. Nothing is left behind.
    pub fn start(self) -> Result<Postgres, ThrowawayError> {
        let conf = self.conf()?;
        let hba = self.hba_conf()?;
        for (name, _) in &self.files {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                let reason = "must be a plain file name";
                return Err(ThrowawayError::invalid("file", name, reason));
            }
        }
        let password = match &self.password {
            Some(password) if password.contains(['\n', '\0']) || password.is_empty() => {
                let reason = "must be one line and not empty";
                return Err(ThrowawayError::invalid("password of", SUPERUSER, reason));
            }
            Some(password) => password.clone(),
            None => random_password().map_err(ThrowawayError::io("read /dev/urandom"))?,
        };
        let binaries = match &self.binaries {
            Some(binaries) => binaries.clone(),
            None => PostgresBinaries::find(None)?,
        };
        let io = |what: &'static str| ThrowawayError::io(what);
        let account = Account::unprivileged();
        let scratch = Scratch::new("walrelay-pg-", account);
        let scratch = scratch.map_err(io("make a temporary directory"))?;

        self.initdb(&binaries, &scratch, &password)?;
        let data = scratch.path().join("data");
        // Appended, so that what initdb found out about this machine stays.
        let mut all = fs::read(data.join("postgresql.conf")).map_err(io("read postgresql.conf"))?;
        all.extend_from_slice(conf.as_bytes());
        let own = [
            ("postgresql.conf", &all[..]),
            ("pg_hba.conf", hba.as_bytes()),
        ];
        let files = self.files.iter().map(|(name, bytes)| (&**name, &**bytes));
        for (name, bytes) in own.into_iter().chain(files) {
            write_private(&data.join(name), bytes, account)
                .map_err(ThrowawayError::io(format!("write {name}")))?;
        }
        let sockets = scratch.path().join("s");
        make_dir(&sockets, account).map_err(io("make a directory for the socket"))?;
        Postgres::first_start(binaries, scratch, password, self.tcp)
    }

    fn conf(&self) -> Result<String, ThrowawayError> {
        let mut settings: Vec<(&str, &str)> = vec![
            ("wal_level", "logical"),
            ("max_wal_senders", "20"),
            ("max_replication_slots", "20"),
            // In the data directory: a server that is killed leaves nothing in /dev/shm.
            ("dynamic_shared_memory_type", "mmap"),
            ("log_line_prefix", "%m [%p] "),
        ];
        if self.fast {
            settings.extend([("fsync", "off"), ("full_page_writes", "off")]);
        }
        settings.extend(
            self.settings
                .iter()
                .map(|(name, value)| (&**name, &**value)),
        );
        let mut conf = String::from("\n# Of this throwaway server\n");
        for (name, value) in settings {
            conf.push_str(&setting_line(name, value)?);
        }
        Ok(conf)
    }

    fn hba_conf(&self) -> Result<String, ThrowawayError> {
        let mut conf = String::new();
        for line in &self.hba {
            if line.contains(['\n', '\r', '\0']) {
                let (what, reason) = ("line of pg_hba.conf", "must be one line");
                return Err(ThrowawayError::invalid(what, line, reason));
            }
            conf.push_str(line);
            conf.push('\n');
        }
        let (socket, tcp) = (self.socket_auth.method(), self.tcp_auth.method());
        for database in ["all", "replication"] {
            let _ = writeln!(conf, "local {database} all {socket}");
            let _ = writeln!(conf, "host {database} all 127.0.0.1/32 {tcp}");
            let _ = writeln!(conf, "host {database} all ::1/128 {tcp}");
        }
        Ok(conf)
    }

    fn initdb(
        &self,
        binaries: &PostgresBinaries,
        scratch: &Scratch,
        password: &str,
    ) -> Result<(), ThrowawayError> {
        let md5 = [self.socket_auth, self.tcp_auth].contains(&Auth::Md5);
        let auth = if md5 { Auth::Md5 } else { Auth::ScramSha256 };
        let password_file = scratch.path().join("password");
        let line = format!("{password}\n");
        write_private(&password_file, line.as_bytes(), scratch.account())
            .map_err(ThrowawayError::io("write the password for initdb"))?;
        let program = binaries.program("initdb");
        let mut command = Command::new(&program);
        command
            .args([
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
                "--no-instructions",
            ])
            // What pg_hba.conf says is written afterwards; this decides how passwords are stored.
            .arg(format!("--auth={}", auth.method()))
            .arg(format!("--username={SUPERUSER}"))
            .arg("--pwfile")
            .arg(&password_file)
            .arg("--pgdata")
            .arg(scratch.path().join("data"));
        prepare_environment(&mut command, scratch.path());
        let output = run_as(&mut command, scratch.account())
            .stdin(Stdio::null())
            .output()
            .map_err(ThrowawayError::io(format!("run {}", program.display())))?;
        fs::remove_file(&password_file)
            .map_err(ThrowawayError::io("remove the password for initdb"))?;
        if !output.status.success() {
            let said = [&output.stdout[..], &output.stderr[..]].concat();
            return Err(ThrowawayError::Initdb {
                status: output.status,
                output: String::from_utf8_lossy(&said).trim_end().to_owned(),
            });
        }
        Ok(())
    }
}

fn random_password() -> io::Result<String> {
    let mut bytes = [0; 12];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut password = String::new();
    for byte in bytes {
        let _ = write!(password, "{byte:02x}");
    }
    Ok(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_out_of_its_line_is_refused() {
        for (name, value) in [("", "1"), ("a b", "1"), ("a=", "1"), ("a", "1\nfsync=off")] {
            assert!(setting_line(name, value).is_err(), "{name:?} {value:?}");
        }
        assert!(
            Postgres::builder()
                .hba("local all all trust\nx")
                .hba_conf()
                .is_err()
        );
        for builder in [
            Postgres::builder().file("../x", ""),
            Postgres::builder().file("/x", ""),
            Postgres::builder().file("", ""),
            Postgres::builder().superuser_password("a\nb"),
            Postgres::builder().superuser_password(""),
        ] {
            let error = builder.start().unwrap_err();
            assert!(matches!(error, ThrowawayError::Invalid { .. }), "{error}");
        }
    }

    #[test]
    fn ones_own_lines_come_first_in_hba_and_last_in_conf() {
        let builder = Postgres::builder()
            .hba("hostssl all all all cert")
            .setting("wal_level", "x");
        assert!(
            builder
                .hba_conf()
                .unwrap()
                .starts_with("hostssl all all all cert\nlocal all")
        );
        assert!(builder.conf().unwrap().ends_with("wal_level = 'x'\n"));
    }

    #[test]
    fn debug_keeps_secrets() {
        let builder = Postgres::builder()
            .superuser_password("hush")
            .file("server.key", "secret");
        let debug = format!("{builder:?}");
        assert!(
            !debug.contains("hush") && !debug.contains("secret"),
            "{debug}"
        );
        // "secret" in bytes
        assert!(!debug.contains("115, 101"), "{debug}");
    }
}
