//! Files and environment of a server.

use std::{fs, io, os::unix::fs::PermissionsExt, path::Path, process::Command};

use super::{Account, ThrowawayError};

/// Removes from a server program's environment what would change its ways.
pub(super) fn prepare_environment(command: &mut Command, dir: &Path) {
    // The present directory need not be one the unprivileged account may enter.
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

/// `name = 'value'`, quoted.
pub(super) fn setting_line(name: &str, value: &str) -> Result<String, ThrowawayError> {
    let invalid = |reason| Err(ThrowawayError::invalid("setting", name, reason));
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.');
    if name.is_empty() || !name.bytes().all(allowed) {
        return invalid("a name is made of letters, digits, underscores and dots");
    }
    if value.contains(['\n', '\r', '\0']) {
        return invalid("a value is one line");
    }
    // The file's quoted values know backslash escapes as well as doubled quotes.
    let quoted = value.replace('\\', "\\\\").replace('\'', "''");
    Ok(format!("{name} = '{quoted}'\n"))
}

pub(super) fn write_private(path: &Path, bytes: &[u8], account: Option<Account>) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    account.map_or(Ok(()), |account| account.own(path))
}

pub(super) fn make_dir(path: &Path, account: Option<Account>) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
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
