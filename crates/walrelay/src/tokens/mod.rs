//! Tokens for Kafka's SASL OAUTHBEARER: from a file that somebody renews, or from a command.

mod command;
mod error;
mod lifetime;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use walrelay_kafka_sink::{Token, TokenError, TokenSource};

use crate::config::{Bearer, TokenOrigin};
use error::Problem;

/// No token is longer: a broker refuses requests above 100 MiB, and this is far below.
const LONGEST: usize = 1 << 20;

/// Asks for a token each time, as the configuration says.
pub(crate) struct Tokens {
    bearer: Bearer,
}

impl Tokens {
    pub(crate) fn new(bearer: Bearer) -> Self {
        Self { bearer }
    }

    fn get(&self) -> Result<Token, Problem> {
        let raw = match &self.bearer.origin {
            TokenOrigin::File(path) => file(path)?,
            TokenOrigin::Command(command) => command::output(command, self.bearer.timeout)?,
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        token(raw.trim(), self.bearer.lifetime, now)
    }
}

impl TokenSource for Tokens {
    fn token(&self) -> Result<Token, TokenError> {
        self.get().map_err(|problem| -> TokenError {
            let origin = match &self.bearer.origin {
                TokenOrigin::File(path) => format!("token_file {}", path.display()),
                TokenOrigin::Command(command) => {
                    // Not its arguments: one may be a secret all the same.
                    let program = command.first().map_or("", String::as_str);
                    format!("token_command {program}")
                }
            };
            Arc::new(error::Failed { origin, problem })
        })
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tokens").field(&self.bearer).finish()
    }
}

fn file(path: &Path) -> Result<String, Problem> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(LONGEST as u64 + 1).read_to_end(&mut bytes))
        .map_err(Problem::Read)?;
    text(bytes)
}

fn text(bytes: Vec<u8>) -> Result<String, Problem> {
    if bytes.len() > LONGEST {
        return Err(Problem::TooLong);
    }
    String::from_utf8(bytes).map_err(|_| Problem::Malformed)
}

/// `raw` without the white space around it; `now` since 1970.
fn token(raw: &str, lifetime: Option<Duration>, now: Duration) -> Result<Token, Problem> {
    if raw.is_empty() {
        return Err(Problem::Empty);
    }
    // b64token of RFC 6750, section 2.1; what else there is would end or change the message.
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if !raw.bytes().all(allowed) {
        return Err(Problem::Malformed);
    }
    let (principal, expires) = lifetime::of(raw, lifetime, now)?;
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

#[cfg(test)]
mod tests;
