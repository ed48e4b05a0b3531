//! Events as HTTP requests behind the sink trait: one `POST` for each event, one in flight per key.
//!
//! # Contents
//! - [`HttpSinkFactory`], [`HttpSink`]: the sink. [`HttpConfig`]: its settings.
//! - [`HttpKind`], [`HttpSection`]: the sink as the configuration and the commands use it.
//! - [`HttpError`]: why the settings cannot be used.
//!
//! # Inside
//! `address` renders the URL of a record. `request` makes the request of a record, and `signature`
//! signs it (Standard Webhooks). `connect` opens connections, and `client` keeps them. `answer`
//! decides the meaning of a status. `worker` sends the records of a sink, on its own thread.
//!
//! # Invariants
//! - A record is delivered when a status of 2xx has come for it, and at no other time.
//! - At most one request of a topic and key is in flight. The next one is sent after the answer.
//! - Every attempt has the same `webhook-id`, also of another process.
//! - No redirect is followed. No proxy of the environment is used.
//! - No key, value, header of a record or secret is in an error, an obstacle or a log line.

#![forbid(unsafe_code)]

mod address;
mod answer;
mod client;
mod config;
mod connect;
mod error;
mod kind;
mod request;
mod section;
mod signature;
mod sink;
mod stream_body;
mod worker;

pub use address::UrlTemplate;
pub use config::{HttpConfig, HttpVersion, Proxy};
pub use error::HttpError;
pub use kind::HttpKind;
pub use section::HttpSection;
pub use signature::SigningSecret;
pub use sink::{HttpSink, HttpSinkFactory};
