use std::{
    collections::BTreeMap,
    env, fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{
    ThrowawayError,
    account::{find_in_path, is_executable},
};

/// A server's version, as `postgres --version` prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 15 of 15.13.
    pub major: u32,
    /// 13 of 15.13; 0 for a beta or release candidate.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// Parses `postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)`, also `18beta1`, `19devel`.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("(PostgreSQL) ")?;
        let number = rest.split_whitespace().next()?;
        let digits = |s: &str| -> String { s.chars().take_while(char::is_ascii_digit).collect() };
        let (major, rest) = number.split_once('.').unwrap_or((number, ""));
        Some(Self {
            major: digits(major).parse().ok()?,
            minor: digits(rest).parse().unwrap_or(0),
        })
    }
}

/// An installed Postgres server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresBinaries {
    dir: PathBuf,
    version: Version,
}

impl PostgresBinaries {
    /// Finds the first server, of this major version if one is given, among: the directory that
    /// `WALRELAY_POSTGRES_BIN` names, `PATH`, the directories that packages install to (newest
    /// first), and [`cache_dir`]`/postgres-<major>/bin` (newest first).
    ///
    /// # Errors
    /// [`ThrowawayError::NotFound`] says what to install. [`ThrowawayError::NotPostgres`] if
    /// `WALRELAY_POSTGRES_BIN` is set and contains no server: a directory that was named explicitly
    /// is not skipped silently.
    pub fn find(major: Option<u32>) -> Result<Self, ThrowawayError> {
        let fits = |found: &Self| major.is_none_or(|major| found.version.major == major);
        let mut looked = Vec::new();
        if let Some(named) = env::var_os("WALRELAY_POSTGRES_BIN").filter(|v| !v.is_empty()) {
            let found = Self::at(PathBuf::from(&named))?;
            if fits(&found) {
                return Ok(found);
            }
            looked.push(named.into());
        }
        for dir in candidates() {
            // A directory may be half installed or of another architecture, so try the next one.
            match Self::at(&dir) {
                Ok(found) if fits(&found) => return Ok(found),
                _ => looked.push(dir),
            }
        }
        Err(ThrowawayError::NotFound {
            wanted: major,
            looked,
        })
    }

    /// Returns the server whose `postgres` and `initdb` are in `dir`.
    ///
    /// # Errors
    /// [`ThrowawayError::NotPostgres`] if they are missing or cannot be run.
    pub fn at(dir: impl Into<PathBuf>) -> Result<Self, ThrowawayError> {
        let dir = dir.into();
        let refuse = |reason: String| ThrowawayError::NotPostgres {
            path: dir.clone(),
            reason,
        };
        for name in ["postgres", "initdb"] {
            if !is_executable(&dir.join(name)) {
                return Err(refuse(format!("no executable {name}")));
            }
        }
        let output = Command::new(dir.join("postgres"))
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| refuse(format!("postgres cannot be run: {error}")))?;
        let words = String::from_utf8_lossy(&output.stdout);
        match Version::parse(&words) {
            Some(version) => Ok(Self { dir, version }),
            None => Err(refuse(format!(
                "postgres --version said {:?} and ended with {}",
                words.trim_end(),
                output.status
            ))),
        }
    }

    /// Returns the version of the server.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the directory of the server's programs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Returns the directory of downloaded servers: `WALRELAY_CACHE`, else `/var/cache/walrelay` for
/// root (the unprivileged account that servers run as must be able to read it), else
/// `$XDG_CACHE_HOME/walrelay`, else `~/.cache/walrelay`. `scripts/cache-dir.sh` has the same
/// rule.
pub fn cache_dir() -> PathBuf {
    let set = |name| {
        let value = env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    if let Some(dir) = set("WALRELAY_CACHE") {
        return dir;
    }
    if rustix::process::geteuid().is_root() {
        return "/var/cache/walrelay".into();
    }
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("walrelay")
}

/// Returns the directories that may contain a server, best first.
fn candidates() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if let Some(postgres) = find_in_path("postgres") {
        dirs.extend(postgres.parent().map(Path::to_path_buf));
    }
    // Debian and Ubuntu, Red Hat and its derivatives, Homebrew on either processor, the cache.
    for (parent, prefix) in [
        ("/usr/lib/postgresql".into(), ""),
        ("/usr".into(), "pgsql-"),
        ("/opt/homebrew/opt".into(), "postgresql@"),
        ("/usr/local/opt".into(), "postgresql@"),
        (cache_dir(), "postgres-"),
    ] {
        dirs.extend(numbered(&parent, prefix));
    }
    dirs
}

/// Returns the directories `parent/<prefix><number>/bin`, highest number first.
fn numbered(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let name = entry.file_name();
        let number: u32 = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
        let bin = entry.path().join("bin");
        bin.is_dir().then_some((number, bin))
    });
    let found: BTreeMap<u32, PathBuf> = found.collect();
    found.into_values().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let parse = |s| Version::parse(s).map(|v| (v.major, v.minor));
        assert_eq!(
            parse("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)\n"),
            Some((15, 13))
        );
        assert_eq!(parse("postgres (PostgreSQL) 18.1\n"), Some((18, 1)));
        assert_eq!(parse("postgres (PostgreSQL) 18beta1\n"), Some((18, 0)));
        assert_eq!(parse("postgres (PostgreSQL) 19devel"), Some((19, 0)));
        assert_eq!(parse("EDB Something"), None);
        assert_eq!(parse("postgres (PostgreSQL) x"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_newest_comes_first_by_number_not_by_text() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["9", "15", "18", "lib", "17x"] {
            fs::create_dir_all(dir.path().join(name).join("bin")).unwrap();
        }
        fs::create_dir(dir.path().join("20")).unwrap(); // without bin
        let order = ["18", "15", "9"].map(|n| dir.path().join(n).join("bin"));
        assert_eq!(numbered(dir.path(), ""), order);
        assert!(numbered(&dir.path().join("absent"), "").is_empty());
    }

    #[test]
    fn a_directory_without_a_server_says_what_it_lacks() {
        let dir = tempfile::tempdir().unwrap();
        let error = PostgresBinaries::at(dir.path()).unwrap_err().to_string();
        assert!(error.contains("no executable postgres"), "{error}");
    }

    #[test]
    fn an_absent_version_says_what_to_install() {
        let error = PostgresBinaries::find(Some(999)).unwrap_err();
        assert!(matches!(error, ThrowawayError::NotFound { .. }), "{error}");
        let words = error.to_string();
        for part in [
            "no PostgreSQL 999 server",
            "apt-get install postgresql",
            "WALRELAY_POSTGRES_BIN",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
}
