//! The management interface: what AMQP does not show. `check` asks it, and `verify-topic
//! --against-table`.
//!
//! Source: the HTTP API of the plugin `rabbitmq_management`, `/api/index.html` of a server.

mod routes;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::Agent;
use walrelay_http_client::{Roots, agent, basic};

use routes::{Binding, Exchange};
pub(crate) use routes::{Reached, Routes};

/// Bytes of an answer, at most.
const MAX_BODY: u64 = 16 << 20;

/// The time after which no further request is sent.
const LIMIT: Duration = Duration::from_secs(60);

/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The address of the management interface, and the login.
#[derive(Clone)]
pub(crate) struct Management {
    /// Without a slash at its end.
    pub(crate) url: String,
    pub(crate) username: String,
    pub(crate) password: SecretString,
    pub(crate) vhost: String,
    pub(crate) ca_file: Option<PathBuf>,
    /// The limit of each request.
    pub(crate) timeout: Duration,
}

/// Without user and password.
impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Management")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// The management interface does not answer the question.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagementError {
    /// There is no answer, or it is not understood.
    #[error("at {url} gives no answer that is understood: {reason}")]
    Unreachable { url: String, reason: String },
    /// The user has no right to ask, or is not known.
    #[error("at {url} refuses the user ({status})")]
    Denied { url: String, status: u16 },
    /// The file of certificates cannot be used.
    #[error("needs {}, which cannot be used", path.display())]
    Roots {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// A queue as the interface describes it. What a policy says counts like an argument.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Queue {
    #[serde(default)]
    durable: bool,
    /// The nodes that have a replica, of a stream or a quorum queue.
    #[serde(default)]
    members: serde_json::Value,
    #[serde(default)]
    arguments: HashMap<String, serde_json::Value>,
    #[serde(default)]
    effective_policy_definition: Policy,
}

/// The part of the overview that is used.
#[derive(Debug, Default, Deserialize)]
struct Overview {
    #[serde(default)]
    rabbitmq_version: String,
}

/// A policy; an empty one is written as a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Policy {
    Keys(HashMap<String, serde_json::Value>),
    Other(serde::de::IgnoredAny),
}

impl Default for Policy {
    fn default() -> Self {
        Self::Other(serde::de::IgnoredAny)
    }
}

impl Queue {
    fn has(&self, key: &str) -> Option<&serde_json::Value> {
        let argument = self.arguments.get(&format!("x-{key}"));
        let of_policy = match &self.effective_policy_definition {
            Policy::Keys(keys) => keys.get(key),
            Policy::Other(_) => None,
        };
        argument.or(of_policy)
    }

    fn is(&self, key: &str, value: &str) -> bool {
        self.has(key).and_then(serde_json::Value::as_str) == Some(value)
    }

    /// Returns the number of nodes that have a replica; zero of a classic queue.
    pub(crate) fn members(&self) -> usize {
        self.members.as_array().map_or(0, Vec::len)
    }

    /// Returns true if it is a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.is("queue-type", "stream")
    }

    /// Returns how the queue loses messages that it has confirmed.
    pub(crate) fn loses(&self) -> Option<&'static str> {
        if !self.durable {
            return Some("is not durable, and loses its messages with the server");
        }
        // A stream keeps its newest messages by design, whether they were read or not.
        let is_limited = self.has("max-length").is_some() || self.has("max-length-bytes").is_some();
        let refuses = ["reject-publish", "reject-publish-dlx"]
            .iter()
            .any(|value| self.is("overflow", value));
        (is_limited && !refuses && !self.is_stream())
            .then_some("has a limit and drops its oldest messages (drop-head)")
    }
}

impl Management {
    /// Connects to nothing yet.
    pub(crate) fn open(&self) -> Result<Interface<'_>, ManagementError> {
        let roots = match &self.ca_file {
            _ if self.url.starts_with("http:") => Roots::None,
            None => Roots::System,
            Some(path) => Roots::from_file(path).map_err(|source| ManagementError::Roots {
                path: path.clone(),
                source,
            })?,
        };
        let password = self.password.expose_secret().as_bytes();
        Ok(Interface {
            of: self,
            agent: agent(self.timeout, roots),
            until: Instant::now() + LIMIT,
            authorization: basic(self.username.as_bytes(), password).into(),
        })
    }
}

/// A client of the interface.
pub(crate) struct Interface<'m> {
    of: &'m Management,
    agent: Agent,
    /// When no further request is sent.
    until: Instant,
    authorization: SecretString,
}

impl Interface<'_> {
    /// Reads what `path` of the virtual host's `kind` has; `None` if it does not exist.
    fn get<T: DeserializeOwned>(
        &self,
        kind: &str,
        name: &str,
        path: &str,
    ) -> Result<Option<T>, ManagementError> {
        let escaped = |text| utf8_percent_encode(text, RESERVED);
        let (vhost, name) = (escaped(&self.of.vhost), escaped(name));
        self.read(&format!("{kind}/{vhost}/{name}{path}"))
    }

    /// Reads a path of the interface; `None` if it does not exist.
    fn read<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ManagementError> {
        let Management { url, .. } = self.of;
        let address = format!("{url}/api/{path}");
        let unreachable = |reason: String| ManagementError::Unreachable {
            url: url.clone(),
            reason,
        };
        if Instant::now() >= self.until {
            return Err(unreachable(format!(
                "the answers took longer than {LIMIT:?}"
            )));
        }
        let request = self.agent.get(&address);
        let request = request.header("Authorization", self.authorization.expose_secret());
        let mut answer = request
            .call()
            .map_err(|error| unreachable(error.to_string()))?;
        match answer.status().as_u16() {
            200 => {}
            404 => return Ok(None),
            status @ (401 | 403) => {
                return Err(ManagementError::Denied {
                    url: url.clone(),
                    status,
                });
            }
            status => return Err(unreachable(format!("the status {status}"))),
        }
        let body = answer
            .body_mut()
            .with_config()
            .limit(MAX_BODY)
            .read_to_vec();
        let body = body.map_err(|error| unreachable(error.to_string()))?;
        // The error of the decoder may have a part of the body.
        let read = serde_json::from_slice(&body);
        read.map(Some)
            .map_err(|_| unreachable("an answer of another form".to_owned()))
    }

    /// Reads a queue; `None` if it does not exist.
    pub(crate) fn queue(&self, name: &str) -> Result<Option<Queue>, ManagementError> {
        self.get("queues", name, "")
    }

    /// Reads the version of the server; empty if the interface does not report it.
    pub(crate) fn version(&self) -> Result<String, ManagementError> {
        let overview = self.read::<Overview>("overview")?;
        Ok(overview.unwrap_or_default().rabbitmq_version)
    }
}

impl routes::Server for Interface<'_> {
    type Error = ManagementError;

    fn exchange(&self, name: &str) -> Result<Option<Exchange>, ManagementError> {
        self.get("exchanges", name, "")
    }

    fn bindings(&self, exchange: &str) -> Result<Vec<Binding>, ManagementError> {
        let bindings = self.get("exchanges", exchange, "/bindings/source")?;
        Ok(bindings.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Management, Queue};

    #[test]
    fn no_request_is_sent_after_the_limit_of_all() {
        let management = Management {
            url: "http://127.0.0.1:1".to_owned(),
            username: "u".to_owned(),
            password: "p".into(),
            vhost: "/".to_owned(),
            ca_file: None,
            timeout: Duration::from_secs(60),
        };
        let mut interface = management.open().unwrap();
        interface.until = Instant::now();
        let error = interface.version().unwrap_err().to_string();
        assert!(error.contains("took longer than"), "{error}");
    }

    #[test]
    fn a_queue_that_drops_messages_is_told_from_one_that_refuses_them() {
        for (json, wanted) in [
            (r#"{"durable": true}"#, None),
            (r#"{"durable": false}"#, Some("not durable")),
            (
                r#"{"durable": true, "arguments": {"x-max-length": 5}}"#,
                Some("drop-head"),
            ),
            (
                r#"{"durable": true, "arguments": {"x-max-length-bytes": 5, "x-overflow": "drop-head"},
                    "effective_policy_definition": []}"#,
                Some("drop-head"),
            ),
            (
                r#"{"durable": true, "arguments": {"x-max-length": 5, "x-overflow": "reject-publish"}}"#,
                None,
            ),
            (
                r#"{"durable": true, "effective_policy_definition": {"max-length": 5}}"#,
                Some("drop-head"),
            ),
            (
                r#"{"durable": true,
                    "effective_policy_definition": {"max-length": 5, "overflow": "reject-publish-dlx"}}"#,
                None,
            ),
            (
                r#"{"durable": true, "arguments": {"x-queue-type": "stream", "x-max-length-bytes": 5}}"#,
                None,
            ),
        ] {
            let queue: Queue = serde_json::from_str(json).unwrap();
            let found = queue.loses();
            let is_right = match wanted {
                None => found.is_none(),
                Some(words) => found.is_some_and(|found| found.contains(words)),
            };
            assert!(is_right, "{json}: {found:?}");
        }
    }

    #[test]
    fn replicas_are_counted() {
        for (json, wanted) in [
            (r#"{"durable": true}"#, 0),
            (r#"{"members": ["rabbit@a", "rabbit@b"]}"#, 2),
        ] {
            let queue: Queue = serde_json::from_str(json).unwrap();
            assert_eq!(queue.members(), wanted, "{json}");
        }
    }
}
