//! Postgres servers by major version, from the cache that `scripts/fetch-servers.sh` fills.

use std::env;

use walrelay_lab::servers::{Builder, Postgres, PostgresBinaries, cache_dir};

/// Programs of this major version: from the cache, else installed on the machine.
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

/// A builder of a server of this major version, without fsync: it need not survive a power cut.
#[track_caller]
pub fn builder(major: u32) -> Builder {
    Postgres::builder().binaries(binaries(major)).fast()
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
    match settings.iter().fold(builder(major), set).start() {
        Ok(server) => server,
        Err(error) => panic!("Postgres {major} does not start: {error}"),
    }
}

/// URL of a superuser for a test that does not control the server: the one that
/// `WALRELAY_TEST_POSTGRES` names (a server with `wal_level=logical`), else that of a server of this
/// major version, which the test owns and so may stop.
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
