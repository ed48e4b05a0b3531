//! `[sink.oauthbearer]`.

use std::time::Duration;

use super::reader::Reader;
use super::types::{Bearer, TokenOrigin};

const FILE: &str = "sink.oauthbearer.token_file";
const COMMAND: &str = "sink.oauthbearer.token_command";
const TIMEOUT: &str = "sink.oauthbearer.token_timeout";
const LIFETIME: &str = "sink.oauthbearer.token_lifetime";

/// `None` without the section, and when a problem was noted. The file is not opened and the program
/// not run: what they give ends.
pub(super) fn bearer(reader: &mut Reader<'_>) -> Option<Bearer> {
    let second = Duration::from_secs(1);
    let shortest = Duration::from_millis(100);
    let timeout = reader.duration(TIMEOUT, shortest, Some(60 * second));
    let lifetime = reader.duration(LIFETIME, second, None);
    let file = reader.text(FILE).map(|found| reader.beside(&found.value));
    let command: Vec<String> = reader
        .list(COMMAND)
        .into_iter()
        .map(|(word, ..)| word)
        .collect();
    if command.first().is_some_and(String::is_empty) {
        reader.conflict(
            COMMAND,
            format!("the first word of `{COMMAND}` is the program"),
        );
        return None;
    }
    if !reader.has(FILE) && !reader.has(COMMAND) {
        let what = format!("`{LIFETIME}` has no effect without `token_file` or `token_command`");
        reader.conflict(LIFETIME, what);
        return None;
    }
    if reader.has(FILE) && reader.has(COMMAND) {
        let what = format!("`{FILE}` and `{COMMAND}` are both set: keep one of them");
        reader.conflict(COMMAND, what);
        return None;
    }
    let origin = match file {
        Some(path) => TokenOrigin::File(path),
        None if command.is_empty() => return None,
        None => TokenOrigin::Command(command),
    };
    Some(Bearer {
        origin,
        lifetime,
        timeout: timeout?,
    })
}
