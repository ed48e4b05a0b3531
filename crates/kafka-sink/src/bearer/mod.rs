//! Tokens for Kafka's SASL OAUTHBEARER, from a file that another program renews, or from a command.

mod error;

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Token, TokenError, TokenSource};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use walrelay_sink::{OutputLimit, ProgramError, run_program};

use crate::section::{Bearer, TokenOrigin};
use error::Problem;

/// Bytes of the longest token. Brokers refuse requests above 100 MiB, far above this.
const MAX_TOKEN: usize = 1 << 20;
/// The principal of a token without a subject, for messages.
const UNKNOWN_SUBJECT: &str = "the token's subject";

/// Reads the file or runs the command for each token.
impl TokenSource for Bearer {
    fn token(&self) -> Result<Token, TokenError> {
        read(self).map_err(|problem| -> TokenError {
            let origin = match &self.origin {
                TokenOrigin::File(path) => format!("token_file {}", path.display()),
                TokenOrigin::Command(command) => {
                    // Without the arguments, which may be secrets.
                    let program = command.first().map_or("", String::as_str);
                    format!("token_command {program}")
                }
            };
            // One text without a source: librdkafka shows one line.
            let error: Box<dyn Error + Send + Sync> = format!("{origin}: {problem}").into();
            error.into()
        })
    }
}

fn read(bearer: &Bearer) -> Result<Token, Problem> {
    let raw = match &bearer.origin {
        TokenOrigin::File(path) => read_file(path)?,
        TokenOrigin::Command(command) => run_command(command, bearer.timeout)?,
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    token(raw.trim(), bearer.lifetime, now)
}

/// Runs a program and returns its output: without a shell, with the relay's environment and without standard input.
/// Its standard error is discarded.
fn run_command(command: &[String], limit: Duration) -> Result<String, Problem> {
    let (program, arguments) = command.split_first().ok_or(Problem::Empty)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let output = OutputLimit::AtMost(MAX_TOKEN);
    let ended = run_program(&mut command, limit, output).map_err(|error| match error {
        ProgramError::Start(error) => Problem::Start(error),
        ProgramError::Output(error) => Problem::Output(error),
        ProgramError::TooLong { .. } => Problem::TooLong,
        ProgramError::Slow { limit } => Problem::Slow { after: limit },
    })?;
    if !ended.status.success() {
        let status = ended.status;
        return Err(Problem::Status { status });
    }
    text(ended.stdout)
}

fn read_file(path: &Path) -> Result<String, Problem> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_TOKEN as u64 + 1).read_to_end(&mut bytes))
        .map_err(Problem::Read)?;
    text(bytes)
}

fn text(bytes: Vec<u8>) -> Result<String, Problem> {
    if bytes.len() > MAX_TOKEN {
        return Err(Problem::TooLong);
    }
    String::from_utf8(bytes).map_err(|_| Problem::Malformed)
}

/// Checks a token, which has no white space around it. `now`: time since 1970.
fn token(raw: &str, lifetime: Option<Duration>, now: Duration) -> Result<Token, Problem> {
    if raw.is_empty() {
        return Err(Problem::Empty);
    }
    // `b64token` of RFC 6750, section 2.1. Other characters could end or change the SASL message.
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if !raw.bytes().all(allowed) {
        return Err(Problem::Malformed);
    }
    let (principal, expires) = subject_and_expiry(raw, lifetime, now)?;
    let valid_for = expires
        .checked_sub(now)
        .filter(|left| !left.is_zero())
        .ok_or(Problem::Expired {
            ago: now.saturating_sub(expires),
        })?;
    Ok(Token {
        value: raw.to_owned(),
        principal,
        expires_at_ms: i64::try_from(expires.as_millis()).unwrap_or(i64::MAX),
        valid_for,
    })
}

/// The registered claims (RFC 7519, section 4.1) that are read.
#[derive(Deserialize, Default)]
struct Claims {
    sub: Option<String>,
    /// Seconds since 1970, "not necessarily an integer".
    exp: Option<f64>,
}

/// Returns the subject, and the expiry as time since 1970: `exp`, or `now + lifetime`, whichever is
/// earlier.
///
/// The signature is not verified, because the broker does that: the relay only needs to know when to
/// request the next token.
fn subject_and_expiry(
    token: &str,
    lifetime: Option<Duration>,
    now: Duration,
) -> Result<(String, Duration), Problem> {
    let claims = claims(token).unwrap_or_default();
    let claimed = claims
        .exp
        .and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    let configured = lifetime.map(|lifetime| now.saturating_add(lifetime));
    let ends = claimed.into_iter().chain(configured);
    let end = ends.min().ok_or(Problem::NoEnd)?;
    let subject = claims
        .sub
        .filter(|sub| !sub.is_empty() && !sub.contains('\0'));
    Ok((subject.unwrap_or_else(|| UNKNOWN_SUBJECT.to_owned()), end))
}

/// Returns the claims of a JWT in compact form: the second of three parts. The signature may be
/// empty.
fn claims(token: &str) -> Option<Claims> {
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    // Some issuers add padding.
    let bytes = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests;
