use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{Account, Signal, sync::lock};

/// Script of the janitor. It reads one line per change from its owner, and cleans up only when the
/// pipe closes without the word `done`: the owner has gone and its destructors did not run.
///
/// `$1` is the directory. A line is `SIGNAL PID` of the process to end, or `-` for none.
const JANITOR: &str = r#"
trap '' HUP INT
PATH=${PATH:-}:/usr/bin:/bin
signal=- pid=
# Not straight into `signal` and `pid`: `read` empties its variables at the end of the pipe.
while read -r word number; do
    if [ "$word" = done ]; then exit 0; fi
    signal=$word pid=$number
done
if [ "$signal" != - ] && [ -n "$pid" ]; then
    kill -s "$signal" "$pid"
    waited=0
    while kill -0 "$pid" && [ "$waited" -lt 50 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    kill -s KILL "$pid"
fi
rm -rf -- "$1"
sleep 0.5
rm -rf -- "$1"
"#;

/// A temporary directory that is removed with its owner, in whatever way the owner ends.
///
/// It removes itself on drop. If the owner is killed, the janitor (see the module's invariants)
/// ends the [`Process`](super::Process) that uses the directory, and removes it.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
    account: Option<Account>,
    janitor: Arc<Janitor>,
}

impl Scratch {
    /// Creates `<temporary directory>/<prefix>XXXXXX`, owned by `account` if one is given.
    ///
    /// The temporary directory is [`std::env::temp_dir`], or `/tmp` if that path is so long that a
    /// Unix socket in it would exceed the system's limit (108 bytes on Linux, 104 on macOS).
    pub fn new(prefix: &str, account: Option<Account>) -> io::Result<Self> {
        let mut parent = env::temp_dir();
        // The 22 bytes are `/s/.s.PGSQL.65535.lock`, the 6 are random letters.
        if parent.as_os_str().len() + 1 + prefix.len() + 6 + 22 > 100 {
            parent = PathBuf::from("/tmp");
        }
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .rand_bytes(6)
            .tempdir_in(parent)?;
        if let Some(account) = account {
            account.own(dir.path())?;
        }
        let janitor = Arc::new(Janitor::start(dir.path())?);
        Ok(Self {
            dir,
            account,
            janitor,
        })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the account that owns the directory, if it is not that of this process.
    pub fn account(&self) -> Option<Account> {
        self.account
    }

    pub(crate) fn janitor(&self) -> Arc<Janitor> {
        Arc::clone(&self.janitor)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A server's children may outlive it for a moment and still create files.
        let deadline = Instant::now() + Duration::from_secs(3);
        while let Err(error) = fs::remove_dir_all(self.dir.path()) {
            if error.kind() == io::ErrorKind::NotFound {
                break;
            }
            if Instant::now() >= deadline {
                return; // the janitor tries again when the owner ends
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.janitor.dismiss();
    }
}

/// Returns a small shell in a process group of its own. Its pipe from the owner closes when the
/// owner ends, in whatever way.
pub(crate) fn shell(script: &str, name: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script, name])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// The shell that cleans up after an owner that was killed.
#[derive(Debug)]
pub(crate) struct Janitor(Mutex<Child>);

impl Janitor {
    fn start(dir: &Path) -> io::Result<Self> {
        let child = shell(JANITOR, "walrelay-janitor").arg(dir).spawn()?;
        Ok(Self(Mutex::new(child)))
    }

    /// Makes the janitor end this process with this signal if the owner dies.
    pub(crate) fn watch(&self, pid: u32, signal: Signal) {
        self.send_line(&format!("{} {pid}\n", signal.name()));
    }

    /// Makes the janitor end nothing: the process has gone, and its pid may be reused.
    pub(crate) fn forget(&self) {
        self.send_line("-\n");
    }

    fn send_line(&self, line: &str) {
        if let Some(pipe) = self.child().stdin.as_mut() {
            // The pipe is closed if the janitor was killed; then there is no clean-up.
            let _ = pipe.write_all(line.as_bytes());
        }
    }

    fn dismiss(&self) {
        self.send_line("done\n");
        // This closes the pipe first.
        let _ = self.child().wait();
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        lock(&self.0)
    }
}
