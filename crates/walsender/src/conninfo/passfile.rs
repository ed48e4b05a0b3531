//! libpq's password file (documentation, "The Password File"; `passwordFromFile` in fe-connect.c).

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use super::error::ConnInfoError;
use super::info::{ConnInfo, DEFAULT_SOCKET_DIR, Host, HostAddr};
use crate::secret_file;

impl ConnInfo {
    /// Looks the password for `host` up: the one in the connection string, else the one in the
    /// first matching line of the password file `passfile`.
    ///
    /// Call it only when the server asks for a password, so that a password file that is not needed
    /// cannot make a connection fail.
    ///
    /// The file's format is libpq's (documentation, "The Password File"): lines
    /// `hostname:port:database:username:password`, `*` for anything, `\` before `:` and `\`, `#` at
    /// the start of a comment. `localhost` also matches the socket in [`DEFAULT_SOCKET_DIR`].
    ///
    /// # Errors
    /// libpq would print a warning and go on without a password; this returns an error that names
    /// the file: [`ConnInfoError::PassfilePermissions`] if group or others have any access to it,
    /// [`ConnInfoError::Passfile`] if it cannot be read or is not a regular file,
    /// [`ConnInfoError::PassfileEncoding`] if the password is not UTF-8.
    pub fn password_for(&self, host: &Host) -> Result<Option<SecretString>, ConnInfoError> {
        let (None, Some(path)) = (&self.password, self.passfile.clone()) else {
            return Ok(self.password.clone());
        };
        match secret_file::read(&path) {
            Err(source) => Err(ConnInfoError::Passfile { path, source }),
            Ok((metadata, _)) if metadata.mode() & 0o077 != 0 => {
                let mode = metadata.mode() & 0o7777;
                Err(ConnInfoError::PassfilePermissions { path, mode })
            }
            Ok((_, text)) => find(text.expose_secret(), self, host)
                .map_err(|line| ConnInfoError::PassfileEncoding { path, line }),
        }
    }
}

/// Looks the password up in the first matching line; `None` if no line matches or the password is
/// empty. The error is the number of the matching line, from 1, if its password is not UTF-8.
pub(crate) fn find(
    text: &[u8],
    info: &ConnInfo,
    host: &Host,
) -> Result<Option<SecretString>, usize> {
    let name = match &host.address {
        HostAddr::Tcp(name) => name.as_bytes(),
        HostAddr::Unix(directory) if directory == Path::new(DEFAULT_SOCKET_DIR) => b"localhost",
        HostAddr::Unix(directory) => directory.as_os_str().as_encoded_bytes(),
    };
    let port = host.port.to_string();
    let (dbname, user) = (info.dbname.as_bytes(), info.user.as_bytes());
    let fields = [name, port.as_bytes(), dbname, user];
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            continue;
        }
        let mut fields = fields.iter();
        if let Some(password) = fields.try_fold(line, |rest, field| match_field(rest, field)) {
            let password = String::from_utf8(unescape(password)).map_err(|_| index + 1)?;
            return Ok((!password.is_empty()).then(|| password.into()));
        }
    }
    Ok(None)
}

/// Returns the rest of `line` after its first field and the colon, if the field matches.
fn match_field<'a>(line: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    if let Some(rest) = line.strip_prefix(b"*:") {
        return Some(rest);
    }
    let mut rest = line;
    for &expected in wanted {
        let (&byte, after) = match rest {
            [b':', ..] => return None,
            [b'\\', escaped @ ..] => escaped.split_first()?,
            other => other.split_first()?,
        };
        if byte != expected {
            return None;
        }
        rest = after;
    }
    rest.strip_prefix(b":")
}

/// Returns the password in the last field, without escapes. It ends at an unescaped colon, because
/// more fields may be added to the format.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut password = Vec::with_capacity(field.len());
    let mut bytes = field.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b':' => break,
            b'\\' => password.push(bytes.next().copied().unwrap_or(b'\\')),
            byte => password.push(byte),
        }
    }
    password
}
