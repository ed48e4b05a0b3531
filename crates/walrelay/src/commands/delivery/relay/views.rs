//! The views of a process: its HTTP endpoint, its exporter and its reports to the service manager.

use std::sync::Arc;

use tracing::Instrument as _;
use walrelay_failure::Failure;
use walrelay_observe::{Background, EndpointError, Exporter, Pipelines, start_endpoint};

use super::Relay;
use crate::commands::assembly::no_runtime;
use crate::commands::delivery::outbox::outbox_monitor;
use crate::config::ProcessConfig;
use crate::failures;
use crate::workers::SlotMonitor;

/// The threads that show the state of the process. Dropping it stops them.
pub(in crate::commands::delivery) struct Views {
    _endpoint: Option<Background>,
    _exporter: Option<Exporter>,
    _notifier: Option<Background>,
}

/// Starts the HTTP endpoint of a process, its exporter to OpenTelemetry and its reports to the service
/// manager, where there are any.
pub(in crate::commands::delivery) fn start_views(
    process: &ProcessConfig,
    relays: &[&Relay<'_>],
) -> Result<Views, Failure> {
    let observed = relays
        .iter()
        .filter_map(|relay| Some((*relay, relay.telemetry.as_ref()?)));
    let pipelines: Pipelines = observed.clone().map(|(_, one)| Arc::clone(one)).collect();
    let monitors = observed.map(|(relay, telemetry)| {
        let source = &relay.config.source;
        let (slot, tables) = (source.slot.clone(), source.tables.clone());
        let outbox = outbox_monitor(relay.config, relay.info.clone());
        let slot = SlotMonitor::new(relay.info.clone(), slot, tables);
        let telemetry = Arc::clone(telemetry);
        let watch = async move {
            tokio::join!(slot.watch(&telemetry), outbox.watch(&telemetry));
        };
        watch.instrument(relay.span.clone())
    });
    let endpoint = process.http.as_ref();
    let endpoint = endpoint.map(|http| start_endpoint(http, pipelines.clone(), monitors.collect()));
    let endpoint = endpoint.transpose().map_err(failures::endpoint)?;
    let exporter = process.otel.as_ref().filter(|_| endpoint.is_some());
    let exporter = exporter.map(|otel| Exporter::start(otel, pipelines.clone()));
    let exporter = exporter.transpose().map_err(EndpointError::Thread);
    let managers = relays.iter().map(|relay| relay.service_manager.as_ref());
    let notifier = managers.flatten().next();
    let notifier = notifier.map(|manager| manager.start(pipelines));
    Ok(Views {
        _endpoint: endpoint,
        _exporter: exporter.map_err(failures::endpoint)?,
        _notifier: notifier.transpose().map_err(no_runtime)?,
    })
}
