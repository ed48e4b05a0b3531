use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{Account, Signal};

/// Reads one line per change from its owner, and acts only when the pipe closes without the word
/// `done`: the owner is gone and its destructors did not run.
///
/// `$1` is the directory. A line is `SIGNAL PID` of the process in charge, or `-` for none.
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

/// A temporary directory that is removed with its owner, come what may.
///
/// Dropped, it removes itself. If the owner is killed, the janitor (see the module's invariants)
/// removes it after ending the [`Process`](super::Process) that lives in it.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
    account: Option<Account>,
    janitor: Arc<Janitor>,
}

impl Scratch {
    /// Makes `<temporary directory>/<prefix>XXXXXX`, owned by `account` if one is given.
    ///
    /// The temporary directory is [`std::env::temp_dir`], or `/tmp` where that is so long that a
    /// Unix socket in it would have a name beyond the system's limit (108 bytes on Linux, 104 on
    /// macOS).
    pub fn new(prefix: &str, account: Option<Account>) -> io::Result<Self> {
        let mut parent = env::temp_dir();
        // `/s/.s.PGSQL.65535.lock` and six random letters.
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

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Whom it belongs to, if not to the present account.
    pub fn account(&self) -> Option<Account> {
        self.account
    }

    pub(super) fn janitor(&self) -> Arc<Janitor> {
        Arc::clone(&self.janitor)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A server's children may outlive it by an instant and still make files.
        let deadline = Instant::now() + Duration::from_secs(3);
        while let Err(error) = fs::remove_dir_all(self.dir.path()) {
            if error.kind() == io::ErrorKind::NotFound {
                break;
            }
            if Instant::now() >= deadline {
                return; // not dismissed: the janitor will try once more when the owner ends
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.janitor.dismiss();
    }
}

/// A small shell in a process group of its own, which sees its pipe from the owner close when the owner ends,
/// however it ends.
pub(super) fn shell(script: &str, name: &str) -> Command {
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

/// The shell that outlives a killed owner for as long as tidying up takes.
#[derive(Debug)]
pub(super) struct Janitor {
    inner: Mutex<(Option<ChildStdin>, Child)>,
}

impl Janitor {
    fn start(dir: &Path) -> io::Result<Self> {
        let mut child = shell(JANITOR, "walrelay-janitor").arg(dir).spawn()?;
        let pipe = child.stdin.take();
        Ok(Self {
            inner: Mutex::new((pipe, child)),
        })
    }

    /// From now on this process is to be ended with this signal.
    pub(super) fn mind(&self, pid: u32, signal: Signal) {
        self.tell(&format!("{} {pid}\n", signal.name()));
    }

    /// That process is gone; its pid may be given to another.
    pub(super) fn forget(&self) {
        self.tell("-\n");
    }

    fn tell(&self, line: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipe) = inner.0.as_mut() {
            // A janitor that somebody killed is a loss we can live with.
            let _ = pipe.write_all(line.as_bytes());
        }
    }

    fn dismiss(&self) {
        self.tell("done\n");
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0 = None;
        let _ = inner.1.wait();
    }
}
