//! Files and environment of a server.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use super::{Account, Scratch, ThrowawayError};

/// Removes variables from the environment that would change a server program's behaviour, and sets
/// its working directory and locale.
pub(crate) fn prepare_environment(command: &mut Command, dir: &Path) {
    // The unprivileged account may have no access to the current directory.
    command.current_dir(dir).env("LC_ALL", "C");
    for name in [
        "PGDATA",
        "PGPORT",
        "PGOPTIONS",
        "PGDATESTYLE",
        "PGTZ",
        "PGCLIENTENCODING",
    ] {
        command.env_remove(name);
    }
}

/// Returns the line `name = 'value'` of a configuration file, quoted.
pub(crate) fn setting_line(name: &str, value: &str) -> Result<String, ThrowawayError> {
    let invalid = |reason| Err(ThrowawayError::invalid("setting", name, reason));
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.');
    if name.is_empty() || !name.bytes().all(allowed) {
        return invalid("a name is made of letters, digits, underscores and dots");
    }
    if value.contains(['\n', '\r', '\0']) {
        return invalid("a value is one line");
    }
    // Quoted values in the file know backslash escapes as well as doubled quotes.
    let quoted = value.replace('\\', "\\\\").replace('\'', "''");
    Ok(format!("{name} = '{quoted}'\n"))
}

/// Returns the lines of a configuration file under a comment.
pub(crate) fn setting_lines<'s>(
    comment: &str,
    settings: impl Iterator<Item = (&'s str, &'s str)>,
) -> Result<String, ThrowawayError> {
    let lines = settings.map(|(name, value)| setting_line(name, value));
    let lines: String = lines.collect::<Result<_, _>>()?;
    Ok(format!("\n# {comment}\n{lines}"))
}

/// Appends lines to the `postgresql.conf` of a data directory. The values that initdb found for
/// this machine stay.
pub(crate) fn append_settings(data: &Path, lines: &str) -> Result<(), ThrowawayError> {
    OpenOptions::new()
        .append(true)
        .open(data.join("postgresql.conf"))
        .and_then(|mut file| file.write_all(lines.as_bytes()))
        .map_err(ThrowawayError::io("write postgresql.conf"))
}

pub(crate) fn write_private(path: &Path, bytes: &[u8], account: Option<Account>) -> io::Result<()> {
    fs::write(path, bytes)?;
    make_private(path, 0o600, account)
}

/// Returns a scratch directory for a server, with the directory of its Unix socket.
pub(crate) fn postgres_scratch(account: Option<Account>) -> Result<Scratch, ThrowawayError> {
    let scratch = Scratch::new("walrelay-pg-", account)
        .map_err(ThrowawayError::io("make a temporary directory"))?;
    let sockets = scratch.path().join("s");
    fs::create_dir(&sockets)
        .and_then(|()| make_private(&sockets, 0o700, account))
        .map_err(ThrowawayError::io("make a directory for the socket"))?;
    Ok(scratch)
}

/// Copies a directory with owners and permissions. `cp` does that on every system.
///
/// # Errors
/// [`ThrowawayError::Io`], with what `cp` printed.
pub fn copy_dir(from: &Path, to: &Path) -> Result<(), ThrowawayError> {
    let what = "copy a directory";
    let output = Command::new("cp")
        .arg("-a")
        .args([from, to])
        .stdin(Stdio::null())
        .output()
        .map_err(ThrowawayError::io(what))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ThrowawayError::io(what)(io::Error::other(said)))
}

fn make_private(path: &Path, mode: u32, account: Option<Account>) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    account.map_or(Ok(()), |account| account.own(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted() {
        assert_eq!(
            setting_line("a.b_1", r"it's C:\x").unwrap(),
            "a.b_1 = 'it''s C:\\\\x'\n"
        );
    }
}
