use std::{fmt, path::Path, sync::Arc};

use super::{
    Account, Postgres, PostgresBinaries, Template, ThrowawayError,
    files::{append_settings, copy_dir, postgres_scratch, setting_lines, write_private},
    initdb::{initdb, random_password},
};

impl Postgres {
    /// Returns a builder with defaults that suit a relay's tests.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

/// Options of a [`Postgres`] server. The defaults suit a relay's tests: the superuser `postgres`
/// has a random password, which the URLs contain, clients of the Unix socket are trusted, and the
/// server listens on 127.0.0.1 at a free port, where clients log in by SCRAM-SHA-256.
#[derive(Clone, Default)]
#[must_use]
pub struct Builder {
    binaries: Option<PostgresBinaries>,
    template: Option<Arc<Template>>,
    settings: Vec<(String, String)>,
    hba: Vec<String>,
    files: Vec<(String, Vec<u8>)>,
}

/// Omits the contents of files.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("binaries", &self.binaries)
            .field("template", &self.template)
            .field("settings", &self.settings)
            .field("hba", &self.hba)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets the server to run. Default: the result of [`PostgresBinaries::find`].
    pub fn binaries(mut self, binaries: PostgresBinaries) -> Self {
        self.binaries = Some(binaries);
        self
    }

    /// Begins with a copy of this data directory instead of running `initdb`, and runs the programs
    /// that made it: [`binaries`](Self::binaries) is ignored.
    pub fn template(mut self, template: Arc<Template>) -> Self {
        self.template = Some(template);
        self
    }

    /// Adds a line of `postgresql.conf`; the value is quoted here. Later settings override
    /// earlier ones, and the defaults: `wal_level=logical`, `max_wal_senders=20`,
    /// `max_replication_slots=20`, `dynamic_shared_memory_type=mmap`.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Adds a line of `pg_hba.conf`, before the default ones. The first line that matches a
    /// client counts.
    pub fn hba(mut self, line: impl Into<String>) -> Self {
        self.hba.push(line.into());
        self
    }

    /// Adds a file in the data directory, readable by the server only, such as `server.key` and
    /// `server.crt` for `ssl=on`.
    pub fn file(mut self, name: impl Into<String>, contents: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), contents.into()));
        self
    }

    /// Turns off fsync and full-page writes, for large loads in tests. The data survive
    /// [`Postgres::kill`] but not a crash of the machine. Commits still wait until the WAL is
    /// written, because a walsender sends only written WAL.
    pub fn fast(self) -> Self {
        self.setting("fsync", "off")
            .setting("full_page_writes", "off")
    }

    /// Creates a data directory, starts the server and waits until it accepts connections.
    ///
    /// # Errors
    /// No server was found; a setting cannot be written; `initdb` or the server failed, with its
    /// output; the server was not ready in time. Nothing is left behind.
    pub fn start(self) -> Result<Postgres, ThrowawayError> {
        let conf = self.conf()?;
        let hba = self.hba_conf()?;
        for (name, _) in &self.files {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                let reason = "must be a plain file name";
                return Err(ThrowawayError::invalid("file", name, reason));
            }
        }
        let account = Account::unprivileged();
        let scratch = postgres_scratch(account)?;
        let data = scratch.path().join("data");
        let (binaries, password) = if let Some(template) = self.template {
            copy_dir(&template.data_dir(), &data)?;
            (template.binaries.clone(), template.password.clone())
        } else {
            let find = || PostgresBinaries::find(None);
            let binaries = self.binaries.map_or_else(find, Ok)?;
            let password = random_password()?;
            initdb(&binaries, &scratch, &password)?;
            (binaries, password)
        };
        append_settings(&data, &conf)?;
        let files = self.files.iter().map(|(name, bytes)| (&**name, &**bytes));
        let hba = [("pg_hba.conf", hba.as_bytes())];
        for (name, bytes) in hba.into_iter().chain(files) {
            write_private(&data.join(name), bytes, account)
                .map_err(ThrowawayError::io(format!("write {name}")))?;
        }
        Postgres::first_start(binaries, scratch, password)
    }

    fn conf(&self) -> Result<String, ThrowawayError> {
        let defaults = [
            ("wal_level", "logical"),
            ("max_wal_senders", "20"),
            ("max_replication_slots", "20"),
            // In the data directory, so that a killed server leaves nothing in /dev/shm.
            ("dynamic_shared_memory_type", "mmap"),
            ("log_line_prefix", "%m [%p] "),
        ];
        let own = self.settings.iter();
        let own = own.map(|(name, value)| (&**name, &**value));
        setting_lines("Of this throwaway server", defaults.into_iter().chain(own))
    }

    fn hba_conf(&self) -> Result<String, ThrowawayError> {
        const DEFAULTS: &str = "local all,replication all trust\n\
            host all,replication all 127.0.0.1/32 scram-sha-256\n\
            host all,replication all ::1/128 scram-sha-256\n";
        let invalid = |line: &&String| line.contains(['\n', '\r', '\0']);
        if let Some(line) = self.hba.iter().find(invalid) {
            let (what, reason) = ("line of pg_hba.conf", "must be one line");
            return Err(ThrowawayError::invalid(what, line, reason));
        }
        Ok(format!("{}\n{DEFAULTS}", self.hba.join("\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::files::setting_line, *};

    #[test]
    fn what_would_break_out_of_its_line_is_refused() {
        for (name, value) in [("", "1"), ("a b", "1"), ("a=", "1"), ("a", "1\nfsync=off")] {
            let line = setting_line(name, value);
            assert!(line.is_err(), "{name:?} {value:?}");
        }
        let two_lines = Postgres::builder().hba("local all all trust\nx");
        assert!(two_lines.hba_conf().is_err());
        for builder in [
            Postgres::builder().file("../x", ""),
            Postgres::builder().file("/x", ""),
            Postgres::builder().file("", ""),
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
        let hba = builder.hba_conf().unwrap();
        assert!(hba.starts_with("hostssl all all all cert\nlocal all"));
        assert!(builder.conf().unwrap().ends_with("wal_level = 'x'\n"));
    }

    #[test]
    fn debug_keeps_secrets() {
        let debug = format!("{:?}", Postgres::builder().file("server.key", "secret"));
        assert!(!debug.contains("secret"), "{debug}");
        // "secret" as bytes
        assert!(!debug.contains("115, 101"), "{debug}");
    }
}
