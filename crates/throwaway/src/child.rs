use std::{
    io,
    ops::{Deref, DerefMut},
    os::unix::process::CommandExt,
    process::{Child, Command},
    sync::Mutex,
};

use super::{Signal, janitor::shell, sync::lock};

/// Leader of the process group of the owner's children. Its pipe closes when the owner ends, in
/// whatever way; then it kills the group, itself included.
const LEADER: &str = "trap '' HUP INT; while read -r _; do :; done; kill -s KILL 0";

/// Makes `command` run in a process group that is killed when this process ends, also by SIGKILL.
///
/// There is one group per owner process, led by a small shell. Processes that the command starts
/// belong to the group too, unless they make a group of their own. The kernel puts the child into
/// the group before the program runs, so no child is ever outside it.
///
/// # Errors
/// If `/bin/sh` cannot be run.
pub fn end_with_owner(command: &mut Command) -> io::Result<&mut Command> {
    static STARTED: Mutex<Option<Child>> = Mutex::new(None);
    let mut leader = lock(&STARTED);
    if leader.is_none() {
        // This `Child` is never dropped, so the pipe to the leader stays open.
        *leader = Some(shell(LEADER, "walrelay-children").spawn()?);
    }
    if let Some(leader) = &*leader {
        command.process_group(leader.id() as i32);
    }
    Ok(command)
}

/// A child process that is killed and reaped on drop, and killed when its owner ends
/// ([`end_with_owner`]).
///
/// It is for programs under test. A server needs a [`Process`](super::Process), which has an
/// account, a directory and a signal for an orderly end.
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

    /// Sends a signal. Do not call it after `wait` or `try_wait` returned a status: the pid may
    /// then belong to another process.
    ///
    /// # Errors
    /// If this process may not signal the child.
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
        // Both fail only for a child that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
