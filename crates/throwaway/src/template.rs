use std::{fmt, path::PathBuf};

use super::{
    Account, PostgresBinaries, Scratch, ThrowawayError,
    files::postgres_scratch,
    initdb::{initdb, random_password},
};

/// A data directory as `initdb` makes it, for servers that begin with a copy of it: a copy takes a
/// tenth of the time of `initdb`.
///
/// All copies have the same system identifier and the same password of the superuser. Two servers
/// that must differ in them are made without a template.
pub struct Template {
    pub(crate) binaries: PostgresBinaries,
    pub(crate) password: String,
    scratch: Scratch,
}

impl Template {
    /// Runs `initdb` of these programs.
    ///
    /// # Errors
    /// As for [`Builder::start`](super::Builder::start).
    pub fn create(binaries: PostgresBinaries) -> Result<Self, ThrowawayError> {
        let password = random_password()?;
        let scratch = postgres_scratch(Account::unprivileged())?;
        initdb(&binaries, &scratch, &password)?;
        Ok(Self {
            binaries,
            password,
            scratch,
        })
    }

    /// Returns the data directory. No server runs in it.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.scratch.path().join("data")
    }
}

/// Omits the password.
impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template")
            .field("binaries", &self.binaries)
            .finish_non_exhaustive()
    }
}
