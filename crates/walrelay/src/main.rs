//! `walrelay`: see the library for what it is made of.

use std::process::ExitCode;

fn main() -> ExitCode {
    walrelay::run_command(std::env::args_os()).into()
}
