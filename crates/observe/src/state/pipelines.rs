//! [`Pipelines`]: the telemetry of all pipelines of a process, as its endpoint shows it.

use std::sync::Arc;

use serde::Serialize;

use crate::{ProblemReport, Telemetry};

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
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Telemetry>> {
        self.0.iter()
    }

    /// Returns the only pipeline; `None` if there are several.
    pub(crate) fn only(&self) -> Option<&Arc<Telemetry>> {
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
    pub(crate) fn named(&self, query: Option<&str>) -> Result<&Arc<Telemetry>, String> {
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

    /// Returns whether the process is ready: each pipeline is, or stands by if `standby_ready`.
    pub(crate) fn readiness(&self, standby_ready: bool) -> Readiness {
        let mut all = Readiness {
            ready: true,
            reason: None,
            remedy: None,
            problems: Vec::new(),
        };
        let add = |name: Option<&str>, part: &mut Option<String>, text: Option<String>| {
            let Some(text) = text else { return };
            let text = name.map_or_else(|| text.clone(), |name| format!("{name}: {text}"));
            *part = Some(match part.take() {
                Some(before) => format!("{before}; {text}"),
                None => text,
            });
        };
        for pipeline in self.iter() {
            let (ready, reason) = match (pipeline.standing_by(), pipeline.not_ready()) {
                (Some(standing_by), _) => (standby_ready, Some(standing_by)),
                (None, reason) => (reason.is_none(), reason),
            };
            let name = self.only().is_none().then(|| pipeline.name());
            all.ready &= ready;
            add(name, &mut all.reason, reason);
            add(name, &mut all.remedy, pipeline.remedy().filter(|_| !ready));
            let problems = pipeline.report().problems.into_iter();
            let problems = problems.filter(|problem| problem.level != "ok");
            all.problems
                .extend(problems.map(|problem| Problem::new(name, problem)));
        }
        all
    }
}

/// The readiness of a process, as `/readyz` answers.
#[derive(Debug, Serialize)]
pub(crate) struct Readiness {
    pub(crate) ready: bool,
    /// The reason why it is not ready, or stands by.
    reason: Option<String>,
    /// The remedy for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// What is wrong with each pipeline, the worst first; absent if nothing is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Problem>,
}

/// A problem of a pipeline, which has a name if there are several.
#[derive(Debug, Serialize)]
struct Problem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pipeline: Option<String>,
    title: String,
    reason: Option<String>,
    remedy: Option<String>,
    /// The alert and its time.
    alert: Option<String>,
}

impl Problem {
    fn new(pipeline: Option<&str>, problem: ProblemReport) -> Self {
        Self {
            pipeline: pipeline.map(str::to_owned),
            alert: problem.alert_text(),
            title: problem.title,
            reason: problem.reason,
            remedy: problem.remedy,
        }
    }
}
