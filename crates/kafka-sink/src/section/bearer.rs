//! `[sink.oauthbearer]`: where tokens come from.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use walrelay_settings::{
    AlreadyReported, MINUTE, Reader, SECOND, Section as _, duration, path, section, strings,
};

/// `[sink.oauthbearer]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// The origin of a token.
    pub origin: TokenOrigin,
    /// Validity of a token that has no claim `exp`.
    pub lifetime: Option<Duration>,
    /// Timeout of the command.
    pub timeout: Duration,
}

/// The origin of a token.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenOrigin {
    /// The content of this file.
    File(PathBuf),
    /// The output of a command: the program and its arguments. Not empty.
    Command(Vec<String>),
}

/// Without a program's arguments, which may be secrets.
impl fmt::Debug for TokenOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Command(argv) => {
                let program = argv.first().map_or("", String::as_str);
                f.debug_tuple("Command")
                    .field(&program)
                    .finish_non_exhaustive()
            }
        }
    }
}

section! {
/// The keys of [`Bearer`].
pub struct TokenKeys at "sink.oauthbearer" {
    /// A file of the token, renewed by another program. This or `token_command`.
    "token_file" file: Option<PathBuf> = path().optional();
    /// A program, run without a shell, that prints a token, and its arguments.
    "token_command" command: Vec<String> = strings().or_empty();
    /// How long the program may take, 100ms to 1m.
    "token_timeout" timeout: Duration = duration(Duration::from_millis(100)..=MINUTE).or("10s");
    /// How long a token is valid, at least 1s, if it is not a JWT with the claim `exp`.
    "token_lifetime" lifetime: Option<Duration> = duration(SECOND..).optional();
}
}

/// Reads the section; `None` if it is absent. The file is not opened and the program not run,
/// because tokens expire.
pub(super) fn bearer(reader: &mut Reader<'_>) -> Result<Option<Bearer>, AlreadyReported> {
    let [file, command] = [
        "sink.oauthbearer.token_file",
        "sink.oauthbearer.token_command",
    ];
    let tokens = TokenKeys::read(reader)?;
    if tokens.command.first().is_some_and(String::is_empty) {
        let what = format!("the first word of `{command}` is the program");
        return Err(reader.conflict(command, what));
    }
    let origin = match (tokens.file, tokens.command) {
        (None, command) if command.is_empty() => {
            let path = "sink.oauthbearer.token_lifetime";
            reader.no_effect(path, "without `token_file` or `token_command`");
            return Ok(None);
        }
        (None, command) => TokenOrigin::Command(command),
        (Some(file), command) if command.is_empty() => TokenOrigin::File(file),
        (Some(_), _) => return Err(reader.both(file, command)),
    };
    Ok(Some(Bearer {
        origin,
        lifetime: tokens.lifetime,
        timeout: tokens.timeout,
    }))
}
