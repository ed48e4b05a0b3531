//! The check of who may read the configuration file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use toml::Value;
use walrelay_settings::names_a_secret;

use super::item::Check;

/// Bits of the file's mode by which every user of the machine may read it.
const READABLE_BY_ALL: u32 = 0o004;

/// Returns a warning if every user of the machine may read the file, and it holds a password itself.
pub(super) fn check(path: &Path) -> Option<Check> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mode = metadata.permissions().mode();
    let text = fs::read_to_string(path).ok()?;
    let document = text.parse::<toml::Table>().ok()?;
    let key = first_secret("", &Value::Table(document))?;
    (mode & READABLE_BY_ALL != 0).then(|| {
        Check::warn(
            format!(
                "every user of this machine may read the file, which holds the password of {key}"
            ),
            "chmod 640, with the relay's group; or remove the password: ${VARIABLE} or a file, as \
             in password_file",
        )
    })
}

/// Returns the path of the first value that is a secret, as it is in the file: no environment variable, and not
/// the name of a file or a command.
fn first_secret(path: &str, value: &Value) -> Option<String> {
    match value {
        Value::Table(table) => table.iter().find_map(|(key, value)| {
            let below = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            first_secret(&below, value)
        }),
        Value::Array(items) => items.iter().find_map(|item| first_secret(path, item)),
        Value::String(text) => is_secret(path, text).then(|| path.to_owned()),
        _ => None,
    }
}

fn is_secret(path: &str, text: &str) -> bool {
    let is_elsewhere = ["_file", "_command", ".location", ".endpoint.url"]
        .iter()
        .any(|end| path.ends_with(end));
    let is_value = !text.is_empty() && !text.contains("${") && !is_elsewhere;
    is_value && (names_a_secret(path) || has_password(text))
}

/// Returns true for a URL with a password, as in `postgres://user:password@host`.
fn has_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let login = authority.rsplit_once('@').map(|(login, _)| login);
    login
        .and_then(|login| login.split_once(':'))
        .is_some_and(|(_, password)| !password.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Option<String> {
        let document = text.parse().expect("TOML");
        first_secret("", &Value::Table(document))
    }

    #[test]
    fn only_what_the_file_itself_holds_is_a_secret() {
        for (text, key) in [
            (
                "[source]\nurl = \"postgres://u:hunter2@db/app\"",
                Some("source.url"),
            ),
            ("[source]\nurl = \"postgres://u:${PASSWORD}@db/app\"", None),
            ("[source]\nurl = \"postgres://u@db:5432/app\"", None),
            (
                "[sink.kafka]\n\"sasl.password\" = \"hunter2\"",
                Some("sink.kafka.sasl.password"),
            ),
            ("[sink.kafka]\n\"ssl.key.location\" = \"key\"", None),
            ("[sink.nats]\ntoken_file = \"token\"", None),
            (
                "[sink.nats]\nhosts = [\"nats://a:1\", \"nats://u:x@b:1\"]",
                Some("sink.nats.hosts"),
            ),
            ("[sink.redis]\npassword = \"\"", None),
        ] {
            assert_eq!(secret(text).as_deref(), key, "{text}");
        }
    }

    #[test]
    fn a_file_for_all_with_a_password_is_warned_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("walrelay.toml");
        fs::write(&path, "[source]\nurl = \"postgres://u:hunter2@db/app\"\n").expect("written");
        for (mode, warns) in [(0o644, true), (0o640, false), (0o600, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            let found = check(&path);
            assert_eq!(found.is_some(), warns, "{mode:o}");
            let has_value = found.is_some_and(|check| check.finding.contains("hunter2"));
            assert!(!has_value, "the finding has the password");
        }
    }
}
