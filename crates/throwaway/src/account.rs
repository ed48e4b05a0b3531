use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

/// The user and group that a server runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Account {
    /// Fallback on a system without an account `postgres`.
    const NOBODY: Self = Self {
        uid: 65534,
        gid: 65534,
    };

    /// Returns the account that a server must run as if this process runs as root: `postgres`, else
    /// `nobody`. `None` if this process does not run as root.
    pub fn unprivileged() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Some(Self::from_passwd("postgres", &passwd).unwrap_or(Self::NOBODY))
    }

    fn from_passwd(name: &str, passwd: &str) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (uid != 0).then_some(Self { uid, gid })
        })
    }

    /// Makes this account the owner of a file or directory.
    pub(crate) fn own(self, path: &Path) -> io::Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
    }
}

/// Makes a command run as `account`. The standard library clears the supplementary groups when root
/// changes the user.
pub(crate) fn run_as(command: &mut Command, account: Option<Account>) -> &mut Command {
    if let Some(Account { uid, gid }) = account {
        command.uid(uid).gid(gid);
    }
    command
}

/// Returns the first executable file of this name in `PATH`.
pub(crate) fn find_in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

pub(crate) fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        postgres-exporter:x:7:7::/:/bin/false\n\
        postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash\n";

    #[test]
    fn account_is_read_from_passwd() {
        assert_eq!(
            Account::from_passwd("postgres", PASSWD),
            Some(Account { uid: 101, gid: 104 })
        );
        assert_eq!(Account::from_passwd("nobody", PASSWD), None);
    }

    #[test]
    fn an_account_that_is_root_by_another_name_is_not_unprivileged() {
        assert_eq!(
            Account::from_passwd("postgres", "postgres:x:0:0::/:/bin/sh\n"),
            None
        );
        assert_eq!(Account::from_passwd("postgres", "postgres:x:abc\n"), None);
    }
}
