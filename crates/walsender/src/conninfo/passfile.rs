//! libpq's password file (documentation, "The Password File"; `passwordFromFile` in fe-connect.c).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use secrecy::{ExposeSecret, SecretSlice, SecretString};

use super::{ConnInfoError, DEFAULT_SOCKET_DIR, Host, HostAddr};

/// What a line must match.
pub(crate) struct Wanted<'a> {
    pub(crate) host: &'a Host,
    pub(crate) dbname: &'a str,
    pub(crate) user: &'a str,
}

/// What to make of a file that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    IsAnError,
    IsFine,
}

pub(super) fn look_up(
    path: &Path,
    wanted: &Wanted<'_>,
    absent: Absent,
) -> Result<Option<SecretString>, ConnInfoError> {
    let text = match read(path) {
        Ok(Ok(text)) => text,
        Ok(Err(mode)) => {
            return Err(ConnInfoError::PassfilePermissions {
                path: path.to_owned(),
                mode,
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && absent == Absent::IsFine => {
            return Ok(None);
        }
        Err(source) => {
            return Err(ConnInfoError::Passfile {
                path: path.to_owned(),
                source,
            });
        }
    };
    find(text.expose_secret(), wanted).map_err(|line| ConnInfoError::PassfileEncoding {
        path: path.to_owned(),
        line,
    })
}

/// The file's text, or the mode that forbids to use it.
fn read(path: &Path) -> io::Result<Result<SecretSlice<u8>, u32>> {
    // Before opening it: to open a pipe is to wait for somebody to write into it.
    if !std::fs::metadata(path)?.is_file() {
        let kind = io::ErrorKind::InvalidInput;
        return Err(io::Error::new(kind, "not a regular file"));
    }
    let mut file = File::open(path)?;
    let mode = file.metadata()?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Ok(Err(mode));
    }
    // Enough at once for every sensible file, so that no copy of a password is left behind.
    let mut text = Vec::with_capacity(64 * 1024);
    file.read_to_end(&mut text)?;
    Ok(Ok(text.into()))
}

/// The password in the first line that matches; `Err` is the number of a line whose password is not
/// UTF-8.
pub(crate) fn find(text: &[u8], wanted: &Wanted<'_>) -> Result<Option<SecretString>, usize> {
    let host = match &wanted.host.address {
        HostAddr::Tcp(name) => name.as_bytes(),
        HostAddr::Unix(directory) if directory == Path::new(DEFAULT_SOCKET_DIR) => b"localhost",
        HostAddr::Unix(directory) => directory.as_os_str().as_encoded_bytes(),
    };
    let port = wanted.host.port.to_string();
    let fields = [
        host,
        port.as_bytes(),
        wanted.dbname.as_bytes(),
        wanted.user.as_bytes(),
    ];
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            continue;
        }
        let password = fields
            .iter()
            .try_fold(line, |rest, field| match_field(rest, field));
        if let Some(password) = password {
            let password = String::from_utf8(unescape(password)).map_err(|_| index + 1)?;
            return Ok((!password.is_empty()).then(|| password.into()));
        }
    }
    Ok(None)
}

/// What comes after the field at the start of `line` and its colon, if it matches.
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

/// The last field: up to a colon without a backslash, in case more fields are added some day.
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
