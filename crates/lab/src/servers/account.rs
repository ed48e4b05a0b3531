use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use super::Signal;

/// A user and group to run a server as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Account {
    /// What the unprivileged fall back to where no account named `postgres` exists.
    const NOBODY: Self = Self {
        uid: 65534,
        gid: 65534,
    };

    /// The account a server must be run as because the present one is root's: `postgres`, else
    /// `nobody`. `None` where the present account will do.
    pub fn unprivileged() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Some(Self::of("postgres", &passwd).unwrap_or(Self::NOBODY))
    }

    fn of(name: &str, passwd: &str) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (uid != 0).then_some(Self { uid, gid })
        })
    }

    /// Hands a file or directory to this account.
    pub(super) fn own(self, path: &Path) -> io::Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
    }
}

/// The same program with the same arguments, environment and directory, run as `account` and, if
/// `on_owner_death` is given and the system can, signalled when the thread that starts it ends.
pub(super) fn command_as(
    command: &Command,
    account: Option<Account>,
    on_owner_death: Option<Signal>,
) -> Command {
    let mut wrapped = match setpriv() {
        Some(setpriv) if account.is_some() || on_owner_death.is_some() => {
            let mut args: Vec<OsString> = Vec::new();
            if let Some(Account { uid, gid }) = account {
                args.extend([format!("--reuid={uid}"), format!("--regid={gid}")].map(Into::into));
                args.push("--clear-groups".into());
            }
            if let Some(signal) = on_owner_death {
                args.push(format!("--pdeathsig={}", signal.name()).into());
            }
            let mut wrapped = Command::new(setpriv);
            wrapped.args(args).arg("--").arg(command.get_program());
            wrapped
        }
        // The standard library clears the supplementary groups when root changes the user.
        _ => {
            let mut plain = Command::new(command.get_program());
            if let Some(Account { uid, gid }) = account {
                plain.uid(uid).gid(gid);
            }
            plain
        }
    };
    wrapped.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

/// util-linux's `setpriv`, tried once: BusyBox has a namesake without these options.
fn setpriv() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let path = find_in_path("setpriv")?;
            let works = Command::new(&path)
                .args(["--pdeathsig=KILL", "--", "true"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success());
            works.then_some(path)
        })
        .as_deref()
}

/// The first executable file of this name in `PATH`.
pub(super) fn find_in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

pub(super) fn is_executable(file: &Path) -> bool {
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
            Account::of("postgres", PASSWD),
            Some(Account { uid: 101, gid: 104 })
        );
        assert_eq!(Account::of("nobody", PASSWD), None);
    }

    #[test]
    fn an_account_that_is_root_by_another_name_is_not_unprivileged() {
        assert_eq!(Account::of("postgres", "postgres:x:0:0::/:/bin/sh\n"), None);
        assert_eq!(Account::of("postgres", "postgres:x:abc\n"), None);
    }

    #[test]
    fn arguments_environment_and_directory_survive_the_wrapping() {
        let mut command = Command::new("/bin/sh");
        command
            .args([
                "-c",
                "printf '%s|%s|%s|' \"$1\" \"$A\" \"${HOME-unset}\"; pwd",
                "sh",
                "two words",
            ])
            .env("A", "b c")
            .env_remove("HOME")
            .current_dir("/");
        let output = command_as(&command, None, Some(Signal::Kill))
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "two words|b c|unset|/\n"
        );
    }
}
