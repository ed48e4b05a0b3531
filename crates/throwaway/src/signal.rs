use std::{io, process::Child};

use rustix::process::{Pid, Signal as Number, kill_process};

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
    /// pid.
    pub(crate) fn send_to(self, child: &Child) -> io::Result<()> {
        Ok(kill_process(
            Pid::from_child(child),
            self.name_and_number().1,
        )?)
    }
}
