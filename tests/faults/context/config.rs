use std::fs;
use std::path::{Path, PathBuf};

/// Configuration of a relay.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    settings: toml::Table,
}

impl Config {
    /// A configuration of this text.
    pub(super) fn new(path: PathBuf, text: &str) -> Self {
        let settings = text.parse().expect("TOML");
        Self { path, settings }
    }

    /// Adds or replaces settings, which are lines of TOML with dotted keys.
    pub(crate) fn set(mut self, lines: &str) -> Self {
        merge(&mut self.settings, lines.parse().expect("TOML"));
        self
    }

    /// Sets the URL of Postgres.
    pub(crate) fn url(self, url: &str) -> Self {
        self.set(&format!("source.url = \"{url}\""))
    }

    /// Writes the file; returns its path.
    pub(super) fn write(&self) -> &Path {
        fs::write(&self.path, self.settings.to_string()).expect("the configuration is written");
        &self.path
    }
}

fn merge(settings: &mut toml::Table, more: toml::Table) {
    for (key, value) in more {
        match (settings.get_mut(&key), value) {
            (Some(toml::Value::Table(section)), toml::Value::Table(more)) => merge(section, more),
            (_, value) => drop(settings.insert(key, value)),
        }
    }
}
