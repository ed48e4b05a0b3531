use std::{io, process::Child};

use rustix::process::{Pid, Signal as Number, WaitId, WaitIdOptions, kill_process, waitid};

/// A signal to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The signal SIGTERM.
    Term,
    /// The signal SIGINT.
    Int,
    /// The signal SIGQUIT.
    Quit,
    /// The signal SIGKILL.
    Kill,
    /// The signal SIGHUP.
    Hup,
    /// The signal SIGSTOP.
    Stop,
    /// The signal SIGCONT.
    Cont,
}

impl Signal {
    const fn name_and_number(self) -> (&'static str, Number) {
        match self {
            Self::Term => ("TERM", Number::TERM),
            Self::Int => ("INT", Number::INT),
            Self::Quit => ("QUIT", Number::QUIT),
            Self::Kill => ("KILL", Number::KILL),
            Self::Hup => ("HUP", Number::HUP),
            Self::Stop => ("STOP", Number::STOP),
            Self::Cont => ("CONT", Number::CONT),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.name_and_number().0
    }

    /// Sends the signal to a child that has not been reaped: until then no other process gets its
    /// pid. After [`Stop`](Self::Stop) it returns when all threads of the child have stopped, or the
    /// child has ended: the kernel stops the others only once the thread that it chose for the
    /// signal runs, which takes a while on a busy machine.
    pub(crate) fn send_to(self, child: &Child) -> io::Result<()> {
        let pid = Pid::from_child(child);
        kill_process(pid, self.name_and_number().1)?;
        if self == Self::Stop {
            // NOWAIT leaves the status to whoever reaps the child.
            let seen = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), seen))?;
        }
        Ok(())
    }
}
