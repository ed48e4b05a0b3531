//! The password that SCRAM hashes.
//!
//! Postgres prepares a password by SASLprep (RFC 4013), and takes it as it is if SASLprep does not
//! allow it (`pg_saslprep` in `src/common/saslprep.c`). `ScramSha256` of postgres-protocol does the
//! same by the crate stringprep, which differs:
//! - It prepares a password of which nothing is left, such as one of soft hyphens, to an empty one.
//! - It looks for prohibited and unassigned characters after the normalization, Postgres before.

use std::borrow::Cow;

use aws_lc_rs::digest::{SHA256, digest};
use stringprep::tables;
use unicode_normalization::UnicodeNormalization as _;

/// Bytes of a block of SHA-256.
const BLOCK: usize = 64;

/// Prepares the password for `ScramSha256`, so that it hashes the same as Postgres.
pub(super) fn scram_password(password: &[u8]) -> Cow<'_, [u8]> {
    // Both take what is no UTF-8 as it is.
    let Ok(text) = str::from_utf8(password) else {
        return Cow::Borrowed(password);
    };
    let ours = prepared(text).map_or(Cow::Borrowed(text), Cow::Owned);
    let theirs = stringprep::saslprep(text).unwrap_or(Cow::Borrowed(text));
    if ours == theirs {
        return Cow::Borrowed(password);
    }
    Cow::Owned(unprepared(ours.as_bytes()))
}

/// Prepares the password as `pg_saslprep` does; `None` if that does not allow it.
fn prepared(password: &str) -> Option<String> {
    if password.is_ascii() {
        return Some(password.to_owned());
    }
    let mapped: Vec<char> = password
        .chars()
        .filter_map(|c| {
            if tables::non_ascii_space_character(c) {
                return Some(' ');
            }
            (!tables::commonly_mapped_to_nothing(c)).then_some(c)
        })
        .collect();
    let (first, last) = (*mapped.first()?, *mapped.last()?);
    if mapped.iter().any(|c| is_prohibited(*c)) {
        return None;
    }
    // RFC 3454, section 6.
    let right_to_left = tables::bidi_r_or_al;
    if mapped.iter().any(|c| right_to_left(*c))
        && !(right_to_left(first)
            && right_to_left(last)
            && mapped.iter().all(|c| !tables::bidi_l(*c)))
    {
        return None;
    }
    Some(mapped.into_iter().nfkc().collect())
}

/// Returns true if SASLprep prohibits the character (RFC 4013, section 2.3), or Unicode 3.2 does
/// not have it (2.5).
fn is_prohibited(c: char) -> bool {
    tables::non_ascii_space_character(c)
        || tables::ascii_control_character(c)
        || tables::non_ascii_control_character(c)
        || tables::private_use(c)
        || tables::non_character_code_point(c)
        || tables::inappropriate_for_plain_text(c)
        || tables::inappropriate_for_canonical_representation(c)
        || tables::change_display_properties_or_deprecated(c)
        || tables::tagging_character(c)
        || tables::unassigned_code_point(c)
}

/// Rewrites the password so that `ScramSha256` takes it as it is and hashes the same.
///
/// The password is a key of HMAC (RFC 2104): one that is longer than a block stands for its hash, and
/// a shorter one is padded with NUL, which SASLprep prohibits. Only a password of a whole block is
/// left as it is.
fn unprepared(password: &[u8]) -> Vec<u8> {
    let mut key = if password.len() > BLOCK {
        digest(&SHA256, password).as_ref().to_vec()
    } else {
        password.to_vec()
    };
    if key.len() < BLOCK {
        key.push(0);
    }
    key
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};

    use super::*;

    /// The first two differ from stringprep. Source of the outcomes: `pg_saslprep`.
    #[test]
    fn passwords_are_prepared_as_postgres_does() {
        for (password, outcome) in [
            ("\u{ad}\u{200d}", None),
            ("\u{1f100}", None),
            ("a\u{ad}b", Some("ab")),
            ("\u{a0}", Some(" ")),
            ("\u{aa}", Some("a")),
            ("plain\u{7}", Some("plain\u{7}")),
            ("é\u{7}", None),
            ("\u{e000}", None),
            ("\u{627}1", None),
            ("\u{627}1\u{628}", Some("\u{627}1\u{628}")),
            ("\u{627}a\u{628}", None),
        ] {
            assert_eq!(prepared(password).as_deref(), outcome, "{password:?}");
        }
    }

    #[test]
    fn what_is_given_to_the_client_hashes_the_same() {
        let hash = |password: &[u8]| {
            let tag = sign(&Key::new(HMAC_SHA256, password), b"salt");
            tag.as_ref().to_vec()
        };
        // What postgres-protocol does with a password.
        let theirs = |password: &[u8]| match str::from_utf8(password).map(stringprep::saslprep) {
            Ok(Ok(prepared)) => prepared.into_owned().into_bytes(),
            _ => password.to_vec(),
        };
        let long = "\u{1f100}".repeat(17);
        for password in ["\u{ad}", "\u{1f100}", &long, "sésame", "a\u{ad}b", "x"] {
            let ours = prepared(password).unwrap_or_else(|| password.to_owned());
            let given = scram_password(password.as_bytes());
            assert_eq!(hash(&theirs(&given)), hash(ours.as_bytes()), "{password:?}");
        }
        assert_ne!(
            theirs("\u{ad}".as_bytes()),
            "\u{ad}".as_bytes(),
            "no difference"
        );
        assert_eq!(scram_password(b"\xff\xfe"), &b"\xff\xfe"[..]);
    }
}
