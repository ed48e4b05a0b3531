//! Postgres servers by major version, from the cache that `scripts/fetch-servers.sh` fills.

use std::env;

use walrelay_lab::servers::{Builder, Postgres, PostgresBinaries, cache_dir};

/// The programs of this major version: from the cache, else installed on the machine.
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

/// A builder for a server of this major version, made fast: it need not survive a power cut.
#[track_caller]
pub fn builder(major: u32) -> Builder {
    Postgres::builder().binaries(binaries(major)).fast()
}

/// A running server of this major version.
#[track_caller]
pub fn postgres(major: u32) -> Postgres {
    match builder(major).start() {
        Ok(server) => server,
        Err(error) => panic!("Postgres {major} does not start: {error}"),
    }
}

/// A server for a test that only uses one: what `WALRELAY_TEST_POSTGRES` names, a URL of a superuser
/// on a server with `wal_level=logical`, else one of its own.
#[derive(Debug)]
pub struct AnyPostgres {
    url: String,
    own: Option<Postgres>,
}

impl AnyPostgres {
    /// A URL of a superuser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server, if it is the test's own and may be stopped.
    pub fn own(&self) -> Option<&Postgres> {
        self.own.as_ref()
    }
}

/// What `WALRELAY_TEST_POSTGRES` names, or a new server of this major version.
#[track_caller]
pub fn any_postgres(major: u32) -> AnyPostgres {
    match env::var("WALRELAY_TEST_POSTGRES") {
        Ok(url) if !url.is_empty() => AnyPostgres { url, own: None },
        _ => {
            let own = postgres(major);
            AnyPostgres {
                url: own.url(),
                own: Some(own),
            }
        }
    }
}
