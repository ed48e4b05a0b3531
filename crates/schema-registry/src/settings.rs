//! [`RegistrySettings`]: what the configuration says of a registry.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use walrelay_event_router::WireFormat;

/// `[router.registry]`: where the registry is, and how values are encoded.
#[derive(Debug, Clone)]
pub struct RegistrySettings {
    /// URLs of the registry: at least one, without credentials and trailing slash.
    pub urls: Vec<String>,
    /// The way in which the relay authenticates.
    pub login: Option<RegistryLogin>,
    /// PEM file of certificates to trust; `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// Timeout of one request.
    pub timeout: Duration,
    /// True if the relay registers the schemas.
    pub register: bool,
    /// Schemas by subject.
    pub schemas: BTreeMap<String, SchemaFile>,
    /// The encoding of values.
    pub wire: WireFormat,
}

/// The way in which the relay authenticates to a schema registry.
#[derive(Debug, Clone)]
pub enum RegistryLogin {
    /// HTTP basic authentication.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: SecretString,
    },
    /// A bearer token.
    Bearer(SecretString),
}

/// A schema that the configuration names.
#[derive(Clone, PartialEq, Eq)]
pub struct SchemaFile {
    /// The file's path.
    pub path: PathBuf,
    /// The file's content: a schema of the configured format.
    pub text: String,
}

/// Hides the text, because the configuration may name a wrong file.
impl fmt::Debug for SchemaFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SchemaFile").field(&self.path).finish()
    }
}
