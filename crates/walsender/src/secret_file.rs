//! Reads files that contain passwords or keys.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use secrecy::SecretSlice;

/// Reads a regular file and its metadata, both of the same open file. The content is wiped from
/// memory after use.
pub(crate) fn read(path: &Path) -> io::Result<(Metadata, SecretSlice<u8>)> {
    // Check before opening, because opening a pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        let kind = io::ErrorKind::InvalidInput;
        return Err(io::Error::new(kind, "not a regular file"));
    }
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    // Large enough for usual files: growing would leave a copy of the secret in freed memory.
    let mut text = Vec::with_capacity(64 * 1024);
    file.read_to_end(&mut text)?;
    Ok((metadata, text.into()))
}
