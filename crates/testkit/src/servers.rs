//! Postgres servers by major version, from the cache that `scripts/fetch-servers.sh` fills.

use std::collections::HashMap;
use std::env;
use std::sync::{Arc, Mutex};

use walrelay_throwaway::{
    Builder, Postgres, PostgresBinaries, Template, ThrowawayError, cache_dir,
};

use crate::threads::lock;

/// Returns the programs of this major version: from the cache, else installed on the machine.
#[track_caller]
pub fn binaries(major: u32) -> PostgresBinaries {
    let cached = cache_dir().join(format!("postgres-{major}")).join("bin");
    PostgresBinaries::at(cached)
        .or_else(|_| PostgresBinaries::find(Some(major)))
        .unwrap_or_else(|error| {
            panic!(
                "Postgres {major} is needed: run scripts/fetch-servers.sh (make test does), with a \
                 full version such as {major}.1.0 for others than 15, 17 and 18; {error}"
            )
        })
}

/// Returns a builder of a server of this major version, without fsync: it need not survive a power
/// cut. All servers of a version begin with copies of one data directory, and so have one system
/// identifier.
#[track_caller]
pub fn builder(major: u32) -> Builder {
    static TEMPLATES: Mutex<Option<HashMap<u32, Arc<Template>>>> = Mutex::new(None);
    let mut templates = lock(&TEMPLATES);
    let template = templates
        .get_or_insert_default()
        .entry(major)
        .or_insert_with(|| match Template::create(binaries(major)) {
            Ok(template) => Arc::new(template),
            Err(error) => panic!("initdb of Postgres {major} fails: {error}"),
        });
    Postgres::builder().template(Arc::clone(template)).fast()
}

/// Starts a server of this major version whose system identifier no other server has.
#[track_caller]
pub fn another_postgres(major: u32) -> Postgres {
    let builder = Postgres::builder().binaries(binaries(major)).fast();
    started(major, builder)
}

/// Starts a server of this major version.
#[track_caller]
pub fn postgres(major: u32) -> Postgres {
    postgres_with(major, &[])
}

/// Starts a server of this major version with these settings.
#[track_caller]
pub fn postgres_with(major: u32, settings: &[(&str, &str)]) -> Postgres {
    let set = |builder: Builder, (name, value): &(&str, &str)| builder.setting(*name, *value);
    started(major, settings.iter().fold(builder(major), set))
}

/// Starts a server of this major version with these settings, if the machine has one: installed, in the
/// cache, or where `WALRELAY_POSTGRES_BIN` says. For a version that `scripts/fetch-servers.sh` does not fetch.
/// `None` if there is none; then the log of the tests says that this one is skipped.
#[track_caller]
#[expect(
    clippy::print_stderr,
    reason = "the log of the tests says what was left out"
)]
pub fn installed_postgres_with(major: u32, settings: &[(&str, &str)]) -> Option<Postgres> {
    match PostgresBinaries::find(Some(major)) {
        Ok(_) => Some(postgres_with(major, settings)),
        Err(ThrowawayError::NotFound { .. }) => {
            eprintln!(
                "skipped: no Postgres {major} here; WALRELAY_POSTGRES_BIN names its programs"
            );
            None
        }
        Err(error) => panic!("Postgres {major} cannot be looked for: {error}"),
    }
}

#[track_caller]
fn started(major: u32, builder: Builder) -> Postgres {
    match builder.start() {
        Ok(server) => server,
        Err(error) => panic!("Postgres {major} does not start: {error}"),
    }
}

/// Returns the URL of a superuser for a test that does not control the server: the one that
/// `WALRELAY_TEST_POSTGRES` names (a server with `wal_level=logical`), else that of a server of
/// this major version, which the test owns and so may stop.
#[track_caller]
pub fn any_postgres(major: u32) -> (String, Option<Postgres>) {
    match env::var("WALRELAY_TEST_POSTGRES") {
        Ok(url) if !url.is_empty() => (url, None),
        _ => {
            let own = postgres(major);
            (own.url(), Some(own))
        }
    }
}
