//! What a token says of itself. It is not verified: that is the broker's business, and the relay only
//! wants to know when to ask for the next one.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::error::Problem;

/// Whom messages name when the token does not.
const NOBODY: &str = "the token's subject";

/// The registered claims that matter here, RFC 7519 section 4.1.
#[derive(Deserialize, Default)]
struct Claims {
    sub: Option<String>,
    /// Seconds since 1970, "not necessarily an integer".
    exp: Option<f64>,
}

/// The subject, and the end since 1970: `exp`, or `lifetime` from `now` on, whichever is first.
pub(super) fn of(
    token: &str,
    lifetime: Option<Duration>,
    now: Duration,
) -> Result<(String, Duration), Problem> {
    let claims = claims(token).unwrap_or_default();
    let said = claims
        .exp
        .and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    let set = lifetime.map(|lifetime| now.saturating_add(lifetime));
    let end = match (said, set) {
        (Some(said), Some(set)) => said.min(set),
        (Some(end), None) | (None, Some(end)) => end,
        (None, None) => return Err(Problem::NoEnd),
    };
    let subject = claims
        .sub
        .filter(|sub| !sub.is_empty() && !sub.contains('\0'));
    Ok((subject.unwrap_or_else(|| NOBODY.to_owned()), end))
}

/// The payload of a JWT in compact form: the second of three parts, and the signature may be empty.
fn claims(token: &str) -> Option<Claims> {
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    // Some issuers pad.
    let bytes = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&bytes).ok()
}
