use std::{io, process::Child};

use rustix::process::{Pid, Signal as Number, kill_process};

/// A signal to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM
    Term,
    /// SIGINT
    Int,
    /// SIGQUIT
    Quit,
    /// SIGKILL
    Kill,
    /// SIGHUP
    Hup,
    /// SIGSTOP
    Stop,
    /// SIGCONT
    Cont,
}

impl Signal {
    const fn known(self) -> (&'static str, Number) {
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

    pub(super) fn name(self) -> &'static str {
        self.known().0
    }

    /// Sends it to a child that has not been reaped: until then its pid is given to no other process.
    pub(super) fn send_to(self, child: &Child) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(child), self.known().1)?)
    }
}
