//! walrelay.
