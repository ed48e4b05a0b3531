use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError, Sender, SyncSender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{Scratch, Signal, ThrowawayError, account::command_as, janitor::Janitor};

/// A server process that ends when this value is dropped (SIGKILL, unless it has ended before) and
/// when its owner dies.
pub struct Process {
    pid: u32,
    log: PathBuf,
    orders: Option<Sender<Order>>,
    end: Arc<End>,
    /// Starts, signals and reaps the process. It must live as long: the kernel's "parent death
    /// signal" means the thread that forked, not the program.
    keeper: Option<JoinHandle<()>>,
}

struct Order {
    signal: Signal,
    reply: SyncSender<io::Result<()>>,
}

#[derive(Default)]
struct End {
    status: Mutex<Option<ExitStatus>>,
    came: Condvar,
}

/// How often the keeper looks whether the process has ended: in ordinary times, and when it was
/// told to.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_CLOSELY: Duration = Duration::from_millis(2);

impl Process {
    /// Starts `command` as the account `scratch` belongs to, in its own process group, with its
    /// output appended to the file `log`. If the owner dies it is sent `on_owner_death`.
    ///
    /// The command's own settings for user, group, process group and output are not kept. One
    /// process at a time per scratch directory: the janitor minds the latest.
    ///
    /// # Errors
    /// [`ThrowawayError::Io`] if the log cannot be opened or the program cannot be run.
    pub fn spawn(
        name: &str,
        command: &Command,
        scratch: &Scratch,
        log: &Path,
        on_owner_death: Signal,
    ) -> Result<Self, ThrowawayError> {
        let program = command.get_program().display().to_string();
        let open = || -> io::Result<(File, File)> {
            let out = OpenOptions::new().create(true).append(true).open(log)?;
            let err = out.try_clone()?;
            Ok((out, err))
        };
        let (out, err) = open().map_err(ThrowawayError::io(format!("open {}", log.display())))?;
        let mut command = command_as(command, scratch.account(), Some(on_owner_death));
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);

        let janitor = scratch.janitor();
        let end = Arc::new(End::default());
        let (orders, inbox) = mpsc::channel::<Order>();
        let (started, start) = mpsc::sync_channel::<io::Result<u32>>(1);
        let keeper = thread::Builder::new()
            .name(name.to_owned())
            .spawn({
                let end = Arc::clone(&end);
                move || match command.spawn() {
                    Ok(child) => {
                        janitor.mind(child.id(), on_owner_death);
                        let _ = started.send(Ok(child.id()));
                        keep(child, &inbox, &janitor, &end);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            })
            .map_err(ThrowawayError::io("start a thread"))?;
        let pid = start
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it ended")))
            .map_err(ThrowawayError::io(format!("run {program}")))?;
        Ok(Self {
            pid,
            log: log.to_owned(),
            orders: Some(orders),
            end,
            keeper: Some(keeper),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The file its output goes to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        *self
            .end
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal. A process that has ended is none to signal: that is no error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let (reply, answer) = mpsc::sync_channel(1);
        let sent = self
            .orders
            .as_ref()
            .map(|orders| orders.send(Order { signal, reply }));
        match sent {
            Some(Ok(())) => answer.recv().unwrap_or(Ok(())),
            _ => Ok(()),
        }
    }

    /// Waits until it has ended, or `limit` has passed: `None`.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let status = self
            .end
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *self
            .end
            .came
            .wait_timeout_while(status, limit, |status| status.is_none())
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Polls `ready` until it gives true.
    ///
    /// # Errors
    /// [`ThrowawayError::Ended`] if the process ends before, [`ThrowawayError::NotReady`] after
    /// `limit`.
    pub fn wait_ready(
        &self,
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), ThrowawayError> {
        let deadline = Instant::now() + limit;
        loop {
            // The end is looked at first: what a dead server left behind must not pass for ready.
            if let Some(status) = self.wait(Duration::from_millis(5)) {
                return Err(ThrowawayError::Ended {
                    status,
                    log_tail: tail(&self.log),
                });
            }
            if ready() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let log_tail = tail(&self.log);
                return Err(ThrowawayError::NotReady {
                    waited: limit,
                    log_tail,
                });
            }
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("pid", &self.pid)
            .field("log", &self.log)
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.orders = None; // the keeper kills what still runs
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

fn keep(mut child: Child, inbox: &mpsc::Receiver<Order>, janitor: &Janitor, end: &End) {
    let mut look = LOOK;
    let status = loop {
        match inbox.recv_timeout(look) {
            Ok(Order { signal, reply }) => {
                // `kill` and `try_wait` are of this thread alone, so the pid is still the child's.
                let _ = reply.send(signal.send_to(&child));
                if !matches!(signal, Signal::Hup | Signal::Stop | Signal::Cont) {
                    look = LOOK_CLOSELY;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let _ = child.kill();
                break child.wait();
            }
        }
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => break Ok(status),
            Err(error) => break Err(error),
        }
    };
    janitor.forget();
    // `wait` fails only for a child somebody else has reaped: it has ended, we know not how.
    *end.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status.unwrap_or_default());
    end.came.notify_all();
}

/// The last 40 lines of a log, or why there are none.
pub(super) fn tail(log: &Path) -> String {
    match fs::read(log) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        }
        Err(error) => format!("({} cannot be read: {error})", log.display()),
    }
}
