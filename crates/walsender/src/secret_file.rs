//! Files that hold passwords or keys.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use secrecy::SecretSlice;

/// The content of a regular file and its metadata, both of the same open file. The content is wiped
/// from memory after use.
pub(crate) fn read(path: &Path) -> io::Result<(Metadata, SecretSlice<u8>)> {
    // Before opening it: to open a pipe is to wait for somebody to write into it.
    if !std::fs::metadata(path)?.is_file() {
        let kind = io::ErrorKind::InvalidInput;
        return Err(io::Error::new(kind, "not a regular file"));
    }
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    // Enough at once for every sensible file, so that no copy of a secret is left behind.
    let mut text = Vec::with_capacity(64 * 1024);
    file.read_to_end(&mut text)?;
    Ok((metadata, text.into()))
}
