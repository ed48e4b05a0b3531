//! [`SigningSecret`]: signs requests as Standard Webhooks defines it, version `v1`.

use std::fmt::Write as _;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The prefix of a secret, by the specification.
const PREFIX: &str = "whsec_";

/// A secret of Standard Webhooks. `Debug` hides it.
#[derive(Clone)]
pub struct SigningSecret(hmac::Key);

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningSecret")
    }
}

impl SigningSecret {
    /// Parses secrets that are separated by white space: `whsec_` and the base64 of 24 to 64 bytes.
    ///
    /// # Errors
    /// If the text has another form. The message names the form, and not the text.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let parse = |secret: &str| {
            let encoded = secret.strip_prefix(PREFIX)?;
            let bytes = STANDARD.decode(encoded).ok()?;
            (24..=64)
                .contains(&bytes.len())
                .then(|| Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
        };
        let secrets: Option<Vec<Self>> = text.split_whitespace().map(parse).collect();
        secrets.filter(|secrets| !secrets.is_empty()).ok_or_else(|| {
            "a secret is `whsec_` and the base64 of 24 to 64 random bytes; several are separated by \
             white space"
                .to_owned()
        })
    }
}

/// Returns the value of `webhook-signature`: a signature by each secret.
pub(crate) fn signature(secrets: &[SigningSecret], id: &str, seconds: u64, body: &[u8]) -> String {
    let mut signatures = String::new();
    for SigningSecret(key) in secrets {
        let mut context = hmac::Context::with_key(key);
        context.update(format!("{id}.{seconds}.").as_bytes());
        context.update(body);
        let space = if signatures.is_empty() { "" } else { " " };
        let tag = STANDARD.encode(context.sign());
        let _ = write!(signatures, "{space}v1,{tag}");
    }
    signatures
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification, which its libraries test too.
    #[test]
    fn the_known_answer_is_given() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", r#"{"test": 2432232314}"#);
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let one = SigningSecret::parse_all(secret).unwrap();
        assert_eq!(
            signature(&one, id, 1_614_265_330, body.as_bytes()),
            expected
        );
        let other = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
        let both = SigningSecret::parse_all(&format!("{secret}\n{other}\n")).unwrap();
        let signed = signature(&both, id, 1_614_265_330, body.as_bytes());
        let (first, second) = signed.split_once(' ').unwrap();
        assert_eq!(first, expected);
        assert!(second.starts_with("v1,") && second != expected, "{second}");
        assert!(!format!("{both:?}").contains("MfKQ"));
    }

    #[test]
    fn a_secret_is_refused_without_being_shown() {
        for wrong in [
            "",
            " ",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_MfKQ",
            "whsec_!",
        ] {
            let why = SigningSecret::parse_all(wrong).expect_err(wrong);
            assert!(!why.contains("MfKQ"), "{why}");
        }
    }
}
