//! The paths of the programs under measurement.

use std::env;
use std::path::{Path, PathBuf};

use walrelay_throwaway::PostgresBinaries;

/// Returns the walrelay under measurement.
pub(crate) fn binary() -> PathBuf {
    let named = env::args_os()
        .nth(1)
        .or_else(|| env::var_os("WALRELAY_BIN"));
    existing(named.map_or_else(beside_this_program, PathBuf::from))
}

/// Returns the walrelay of `BENCH_BASELINE`, measured beside the other one.
pub(crate) fn baseline() -> Option<PathBuf> {
    env::var_os("BENCH_BASELINE").map(|path| existing(PathBuf::from(path)))
}

fn existing(path: PathBuf) -> PathBuf {
    assert!(
        path.is_file(),
        "{} is not there: build it with `make build`, or name another one",
        path.display()
    );
    path
}

/// Returns `<target>/release/walrelay`; this program is `<target>/<profile>/walrelay-bench`.
fn beside_this_program() -> PathBuf {
    let own = env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(2).unwrap_or(Path::new("target"));
    target.join("release").join("walrelay")
}

/// Finds `pg_recvlogical`: beside the server's programs, in Debian's directory, or in `PATH`.
pub(crate) fn recvlogical(programs: &PostgresBinaries) -> PathBuf {
    const NAME: &str = "pg_recvlogical";
    let path = env::var_os("PATH").unwrap_or_default();
    let debian = Path::new("/usr/lib/postgresql/15/bin").to_path_buf();
    [programs.dir().to_path_buf(), debian]
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|dir| dir.join(NAME))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("{NAME} is needed: apt-get install postgresql-15"))
}
