//! HTTP as a [`SinkKind`].

use std::sync::Arc;
use std::thread;

use tokio::runtime;
use tokio::time::timeout;
use walrelay_failure::{Exit, Failure, ToFailure as _};
use walrelay_sink::{AnySinkFactory, SinkOptions, SinkStats, any_factory};
use walrelay_sink_client::TlsFiles;
use walrelay_sink_kind::check::{Check, CheckInput, SinkChecks};
use walrelay_sink_kind::{Ability, KindDescription, SinkKind};

use crate::address::{Target, UrlTemplate};
use crate::config::HttpConfig;
use crate::connect::connect;
use crate::section::HttpSection;
use crate::sink::HttpSinkFactory;

/// The item of `walrelay check`.
const SERVER: &str = "http-server";

/// The servers of a URL.
#[derive(Debug)]
pub struct HttpKind {
    config: HttpConfig,
    files: TlsFiles,
}

impl HttpKind {
    /// The facts about the kind. Dead letters that were posted cannot be read back.
    pub const DESCRIPTION: KindDescription = KindDescription {
        name: "http",
        title: "HTTP",
        settings_item: Some("http-settings"),
        items: &[SERVER],
        cannot: &[
            Ability::Partitions,
            Ability::Timestamps,
            Ability::Tombstones,
        ],
    };

    /// Makes the sink of a configuration. Does not connect. `options`: those that other sections
    /// decide.
    ///
    /// # Errors
    /// If a file of TLS cannot be used.
    pub fn new(section: &HttpSection, options: SinkOptions) -> Result<Self, Failure> {
        let config = section.config(options);
        let config = config.map_err(|error| error.to_failure())?;
        Ok(Self {
            config,
            files: section.files.clone(),
        })
    }

    fn urls(&self) -> impl Iterator<Item = &UrlTemplate> {
        [Some(&self.config.url), self.config.dead_letter_url.as_ref()]
            .into_iter()
            .flatten()
    }

    /// Connects to the target, with TLS if its URL asks for it. Sends no request.
    fn check_server(&self, target: &Target) -> Result<(), Failure> {
        let what = || format!("the server {target} of [sink.http] cannot be used");
        let unreachable = |cause: String, remedy: &str| {
            Failure::new("http-unreachable", Exit::Unavailable, what())
                .caused_by(cause)
                .remedy(remedy)
        };
        // On a thread of its own: the caller's may belong to a runtime.
        let connected = thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                let runtime = runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|error| error.to_string())?;
                let limit = self.config.timeout;
                let connected = runtime
                    .block_on(async { timeout(limit, connect(target, &self.config)).await.ok() });
                runtime.shutdown_background();
                connected.ok_or_else(|| format!("no connection within {limit:?}"))
            });
            connecting.join()
        });
        match connected {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err(error))) => {
                let remedy = error.remedy();
                Err(if error.is_configuration() {
                    Failure::new("http-tls", Exit::Config, what())
                        .caused_by(error.to_string())
                        .remedy(remedy)
                } else {
                    unreachable(error.to_string(), remedy)
                })
            }
            Ok(Err(cause)) => Err(unreachable(
                cause,
                "check url and proxy in [sink.http], and that the server can be reached from here",
            )),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl SinkKind for HttpKind {
    fn description(&self) -> &'static KindDescription {
        &Self::DESCRIPTION
    }

    fn servers(&self) -> Option<String> {
        let server = self.config.url.server();
        Some(server.map_or_else(
            || "hosts that the events choose".to_owned(),
            |server| server.to_string(),
        ))
    }

    fn warnings(&self) -> Vec<Check> {
        let bare = self.urls().any(UrlTemplate::is_bare);
        let warning = bare.then(|| {
            Check::warn(
                "events are sent without TLS: anyone on the network path can read and change them",
                "let url and dead_letter_url in [sink.http] begin with https://",
            )
        });
        let expiry = self.files.expiry_warning();
        warning.into_iter().chain(expiry).collect()
    }

    fn factory(&self, stats: Option<Arc<SinkStats>>) -> (AnySinkFactory, Option<Arc<SinkStats>>) {
        let stats = stats.unwrap_or_default();
        let factory = HttpSinkFactory::new(self.config.clone(), Arc::clone(&stats));
        (any_factory(factory), Some(stats))
    }

    fn check(&self, _: CheckInput<'_>) -> SinkChecks {
        let mut servers: Vec<Target> = self.urls().filter_map(UrlTemplate::server).collect();
        servers.dedup_by(|a, b| (a.secure, &a.host, a.port) == (b.secure, &b.host, b.port));
        if servers.is_empty() {
            let what = "no server is known before the first event, which chooses its host";
            return vec![(SERVER, Check::pass(what))];
        }
        let checks = servers.iter().map(|target| {
            let check = match self.check_server(target) {
                Ok(()) if target.secure => {
                    Check::pass(format!("{target} answers, and its certificate is trusted"))
                }
                Ok(()) => Check::pass(format!("{target} can be reached")),
                Err(failure) => Check::failed(failure),
            };
            (SERVER, check)
        });
        checks.collect()
    }
}
