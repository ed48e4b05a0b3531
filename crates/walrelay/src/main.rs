//! walrelay.
fn main() {}
