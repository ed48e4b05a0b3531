//! Programs: where they are, and those that run.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use walrelay_lab::proc;
use walrelay_lab::servers::{ChildGuard, PostgresBinaries, Signal};
use walrelay_testkit::{eventually, eventually_some};

/// Nothing waits so long that goes well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A program under measurement. Dropped, it is killed.
pub(crate) struct Running {
    child: ChildGuard,
    log: PathBuf,
}

impl Running {
    pub(crate) fn new(child: ChildGuard, log: PathBuf) -> Self {
        Self { child, log }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A line of its `/proc/…/status` in MB (10^6 bytes); `None` when it is gone.
    pub(crate) fn megabytes(&self, name: &str) -> Option<f64> {
        proc::memory(self.pid(), name).map(|bytes| bytes as f64 / 1e6)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until its log has these words.
    pub(crate) fn until_said(&mut self, words: &str) {
        eventually(PATIENCE, || {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            self.log().contains(words)
        });
    }

    /// Waits for its end, which must be a success.
    pub(crate) fn ended(mut self) {
        let status = eventually_some(PATIENCE, || self.child.try_wait().expect("a child"));
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// SIGTERM; then as [`ended`](Self::ended).
    pub(crate) fn terminate(self) {
        self.child.signal(Signal::Term).expect("a signal is sent");
        self.ended();
    }
}

/// The walrelay to be measured.
pub(crate) fn binary() -> PathBuf {
    let named = env::args_os()
        .nth(1)
        .or_else(|| env::var_os("WALRELAY_BIN"));
    existing(named.map_or_else(beside_this_program, PathBuf::from))
}

/// The walrelay of `BENCH_BASELINE`, to be measured beside it.
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

/// `<target>/release/walrelay`; this program is `<target>/<profile>/examples/bench`.
fn beside_this_program() -> PathBuf {
    let own = env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(3).unwrap_or(Path::new("target"));
    target.join("release").join("walrelay")
}

/// Beside the server's programs, in `PATH`, or where Debian puts it.
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
