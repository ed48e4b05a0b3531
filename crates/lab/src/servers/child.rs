use std::{
    io,
    ops::{Deref, DerefMut},
    os::unix::process::CommandExt,
    process::{Child, Command},
    sync::{Mutex, PoisonError},
};

use super::{Signal, janitor::shell};

/// Leads the process group of the owner's children. Its pipe closes when the owner ends, however it
/// ends; then it kills the group, itself included.
const LEADER: &str = "trap '' HUP INT; while read -r _; do :; done; kill -s KILL 0";

/// Has `command` run in a process group that is killed when this process ends, also by SIGKILL.
///
/// The group is one for this process, and its leader is a small shell. What the command starts
/// itself belongs to the group too, unless it makes a group of its own. The kernel puts the child
/// into the group before the program runs, so there is no moment in which the child could be
/// missed.
///
/// # Errors
/// If `/bin/sh` cannot be run.
pub fn end_with_owner(command: &mut Command) -> io::Result<&mut Command> {
    static STARTED: Mutex<Option<Child>> = Mutex::new(None);
    let mut leader = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if leader.is_none() {
        // The pipe to it stays open in this `Child`, which is never dropped.
        *leader = Some(shell(LEADER, "walrelay-children").spawn()?);
    }
    if let Some(leader) = &*leader {
        command.process_group(leader.id() as i32);
    }
    Ok(command)
}

/// A child process that is killed and reaped when this value is dropped, and killed when its owner
/// ends ([`end_with_owner`]).
///
/// For programs under test. A server has a [`Process`](super::Process): an account, a directory and
/// a signal that lets it end in order.
#[derive(Debug)]
pub struct ChildGuard(Child);

impl ChildGuard {
    /// Starts `command`.
    ///
    /// # Errors
    /// If the program, or `/bin/sh`, cannot be run.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        end_with_owner(command)?.spawn().map(Self)
    }

    /// Sends a signal. Not after `wait` or `try_wait` gave a status: the pid may be another
    /// process's by then.
    ///
    /// # Errors
    /// If the child may not be signalled.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        signal.send_to(&self.0)
    }
}

impl Deref for ChildGuard {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ChildGuard {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Neither fails but for a child that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
