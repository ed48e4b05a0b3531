//! [`Pipelines`]: the telemetry of all pipelines of a process, as its endpoint shows it.

use std::sync::Arc;

use super::Telemetry;

/// The telemetry of each pipeline of a process. Views name a pipeline only if there are several.
#[derive(Debug, Clone)]
pub struct Pipelines(Arc<[Arc<Telemetry>]>);

impl FromIterator<Arc<Telemetry>> for Pipelines {
    fn from_iter<T: IntoIterator<Item = Arc<Telemetry>>>(pipelines: T) -> Self {
        Self(pipelines.into_iter().collect())
    }
}

impl Pipelines {
    /// Iterates over the pipelines, in the order of the configuration.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Telemetry>> {
        self.0.iter()
    }

    /// Returns the only pipeline; `None` if there are several.
    pub(super) fn only(&self) -> Option<&Arc<Telemetry>> {
        match &*self.0 {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns the pipeline that the query of a request names, as in `pipeline=orders`; the only one
    /// if the query names none.
    ///
    /// # Errors
    /// Fails with the reason if the request must name another one.
    pub(super) fn named(&self, query: Option<&str>) -> Result<&Arc<Telemetry>, String> {
        let mut parts = query.unwrap_or_default().split('&');
        let named = parts.find_map(|part| part.strip_prefix("pipeline="));
        let found = match named {
            Some(name) => self.iter().find(|pipeline| pipeline.name() == name),
            None => self.only(),
        };
        found.ok_or_else(|| {
            let known: Vec<_> = self.iter().map(|one| one.name()).collect();
            format!(
                "name one of the pipelines: ?pipeline=NAME with one of {}",
                known.join(", ")
            )
        })
    }

    /// Returns the reason why the process is not ready; `None` if each pipeline is ready.
    pub(super) fn not_ready(&self) -> Option<String> {
        if let Some(only) = self.only() {
            return only.not_ready();
        }
        let reasons = self.iter().filter_map(|pipeline| {
            let reason = pipeline.not_ready()?;
            Some(format!("{}: {reason}", pipeline.name()))
        });
        let reasons: Vec<_> = reasons.collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}
