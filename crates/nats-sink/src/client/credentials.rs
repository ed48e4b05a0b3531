//! Files of credentials: the JWT of a user, and the seed that signs the server's nonce.

use std::fmt;
use std::fs;
use std::path::Path;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::SecretString;

use super::error::NatsError;

/// The alphabet of base32, as RFC 4648 has it.
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// The prefixes of a seed and of a user, in the five bits of a character each.
const SEED: u8 = 18 << 3;
const USER: u8 = 20 << 3;

/// The key of a user, which signs, and the JWT that belongs to it.
pub(crate) struct Credentials {
    /// `None`: the public key alone names the user.
    pub(crate) jwt: Option<SecretString>,
    pub(crate) public_key: String,
    key: Ed25519KeyPair,
}

/// Without JWT and key.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a file of credentials (`nsc generate creds`), or one with the seed of an NKEY alone.
    pub(crate) fn read(file: &Path) -> Result<Self, NatsError> {
        let wrong = |why: String| NatsError::Credentials {
            file: file.display().to_string(),
            why,
        };
        let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(|why| wrong(why.to_owned()))
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let jwt = block(text, "USER JWT");
        let seed = block(text, "USER NKEY SEED").or_else(|| {
            let mut lines = text.lines().map(str::trim);
            lines.find(|line| line.starts_with("SU"))
        });
        let seed = seed.ok_or("it has no seed of a user (SU…)")?;
        let (prefix, seed) = decode_seed(seed).ok_or("its seed is damaged")?;
        if prefix != USER {
            return Err("its seed is not that of a user (SU…)");
        }
        let key = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| "its seed is damaged")?;
        let mut public = vec![USER];
        public.extend_from_slice(key.public_key().as_ref());
        let checksum = crc16(&public);
        public.extend_from_slice(&checksum.to_le_bytes());
        Ok(Self {
            jwt: jwt.map(Into::into),
            public_key: base32(&public),
            key,
        })
    }

    /// Signs the nonce of a server.
    pub(crate) fn sign(&self, nonce: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(self.key.sign(nonce))
    }
}

/// Returns the line between `BEGIN` and `END` of a name.
fn block<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text
        .split_once(&format!("BEGIN NATS {name}"))
        .or_else(|| text.split_once(&format!("BEGIN {name}")))?;
    let line = rest.lines().nth(1)?.trim();
    (!line.is_empty() && !line.starts_with('-')).then_some(line)
}

/// Returns the prefix of the key and the 32 bytes of a seed.
fn decode_seed(text: &str) -> Option<(u8, [u8; 32])> {
    let mut bits = 0_u32;
    let mut count = 0;
    let mut bytes = Vec::new();
    for character in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == character)?;
        bits = (bits << 5) | value as u32;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    let (rest, checksum) = bytes.split_at_checked(34)?;
    let checksum: [u8; 2] = checksum.try_into().ok()?;
    if crc16(rest) != u16::from_le_bytes(checksum) {
        return None;
    }
    let [first, second, seed @ ..] = rest else {
        return None;
    };
    if first & 0xF8 != SEED {
        return None;
    }
    let prefix = ((first & 7) << 5) | ((second & 0xF8) >> 3);
    Some((prefix, seed.try_into().ok()?))
}

fn base32(bytes: &[u8]) -> String {
    let mut text = String::new();
    let (mut bits, mut count) = (0_u32, 0);
    let mut put = |value: u32| {
        let at = (value & 31) as usize;
        text.extend(ALPHABET.get(at).map(|byte| char::from(*byte)));
    };
    for byte in bytes {
        bits = (bits << 8) | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            put(bits >> count);
        }
        bits &= (1 << count) - 1;
    }
    if count > 0 {
        put(bits << (5 - count));
    }
    text
}

/// CRC-16 as XMODEM has it, which NKEYs end with.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // The seed and the public key of the documentation of NKEYs.
    const SEED_TEXT: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    const PUBLIC: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    #[test]
    fn a_seed_names_its_user_and_signs() {
        let credentials = Credentials::parse(&format!("# a comment\n{SEED_TEXT}\n")).unwrap();
        assert_eq!(credentials.public_key, PUBLIC);
        assert!(credentials.jwt.is_none());
        assert_eq!(credentials.sign(b"nonce").len(), 86);
        let file = format!(
            "-----BEGIN NATS USER JWT-----\neyJ0.e.s\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{SEED_TEXT}\n------END USER NKEY SEED------\n"
        );
        let credentials = Credentials::parse(&file).unwrap();
        assert!(credentials.jwt.is_some());
        assert_eq!(credentials.public_key, PUBLIC);
        let shown = format!("{credentials:?}");
        assert!(
            !shown.contains("eyJ0") && !shown.contains("SUAC"),
            "{shown}"
        );
    }

    #[test]
    fn a_damaged_seed_is_refused_without_being_shown() {
        let damaged = SEED_TEXT.replace("XIED", "XIEE");
        for text in ["", "SU", "SUé", &damaged, &SEED_TEXT[..57], "x SUACSS"] {
            let why = Credentials::parse(text).unwrap_err();
            assert!(!why.contains("SUACSS"), "{why}");
        }
    }
}
