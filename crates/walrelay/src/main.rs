//! The program `walrelay`. Its code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    walrelay::run_command(std::env::args_os()).into()
}
