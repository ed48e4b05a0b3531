use std::future::Future;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use walrelay_kafka_sink::GearedSinkFactory;
use walrelay_kafka_sink::letters::LetterWatcher;
use walrelay_relay::{Outcome, Pipeline, PipelineError};
use walrelay_sink::{Parking, SinkFactory};

use super::connect::{block_on, conn_info, kafka, router, schemas, settings, wanted};
use super::{Ended, Env, load};
use crate::cli::{Exit, Failure, RunArgs};
use crate::config::{Config, SinkConfig};
use crate::failures::{self, SinkFailure};
use crate::postgres::{PostgresSource, SourceOptions};
use crate::sinks::StdoutSinkFactory;
use crate::telemetry::{World, log_to_stderr};

/// `walrelay run`.
pub(crate) fn run(args: &RunArgs, env: Env<'_>) -> Ended {
    let config = load(&args.config, env)?;
    log_to_stderr(config.log, env);
    match &config.sink {
        SinkConfig::Kafka(sink) => {
            let kafka = kafka(sink, &config.delivery)?;
            for warning in kafka.warnings() {
                warn!("{warning}");
            }
            let parking = config.poison.park_key.then(|| Arc::new(Parking::new()));
            // Watches as long as the relay runs.
            let _watcher = parking
                .clone()
                .map(|parking| {
                    let (topic, slot) = (&config.poison.topic, &config.source.slot);
                    LetterWatcher::start(&kafka, topic, slot, parking)
                })
                .transpose()
                .map_err(|error| failures::kafka_client(&error))?;
            relay(
                &config,
                args.accept_gap,
                env,
                GearedSinkFactory::new(kafka),
                parking,
            )?;
        }
        SinkConfig::Stdout => {
            let factory = StdoutSinkFactory::new(&config.delivery);
            // Nothing can be read back from there: keys are parked for as long as the relay runs.
            let parking = config.poison.park_key.then(|| Arc::new(Parking::new()));
            if let Some(parking) = &parking {
                parking.set_ready();
            }
            relay(&config, args.accept_gap, env, factory, parking)?;
        }
    }
    Ok(())
}

fn relay<F>(
    config: &Config,
    accept_gap: bool,
    env: Env<'_>,
    factory: F,
    parking: Option<Arc<Parking>>,
) -> Result<(), Failure>
where
    F: SinkFactory,
    F::Error: SinkFailure,
{
    let info = conn_info(&config.source, env)?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        source = %info.redacted(),
        slot = config.source.slot,
        publication = config.source.publication,
        "starting"
    );
    let options = SourceOptions {
        wal_sender_timeout: config.source.wal_sender_timeout,
        state_file: config.source.state_file.clone(),
        accept_gap,
        retained_wal_warning: config.source.retained_wal_warning,
    };
    let source = PostgresSource::new(info, wanted(config), options);
    let (router, messages) = router(config)?;
    let schemas = schemas(config)?;
    let mut pipeline = Pipeline::new(
        source,
        router,
        factory,
        World::new(env),
        settings(config, messages, parking, schemas),
    );
    let result = block_on(async {
        let stop = asked_to_stop()?;
        Ok::<_, Failure>(pipeline.run(stop).await)
    })??;
    pipeline.surroundings().summarise(&pipeline.counts());
    ended(result)
}

fn ended<K: SinkFailure>(
    result: Result<Outcome, PipelineError<crate::postgres::PostgresError, K>>,
) -> Result<(), Failure> {
    match result {
        Ok(Outcome::Drained { confirmed }) => {
            info!(%confirmed, "drained: everything that was sent is confirmed");
            Ok(())
        }
        // Nothing was ever sent, so nothing is owed.
        Ok(Outcome::Incomplete {
            in_flight: 0,
            confirmed: None,
        }) => Ok(()),
        Ok(Outcome::Incomplete { in_flight, .. }) => Err(Failure::new(
            "drain-incomplete",
            Exit::Temporary,
            format!(
                "stopped with {in_flight} records not acknowledged or their position not confirmed"
            ),
        )
        .remedy("nothing is lost: the next start sends again what was not confirmed")),
        Err(error) => Err(failures::pipeline(error)),
    }
}

/// Resolves at SIGTERM or SIGINT. A second signal ends the process at once.
fn asked_to_stop() -> Result<impl Future<Output = ()>, Failure> {
    let failed = |error| {
        Failure::new("signals", Exit::Internal, "cannot listen for signals").caused_by(error)
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            warn!("second signal: stopping at once, without draining");
            // What is in flight is not confirmed, so it is sent again by the next start.
            std::process::exit(i32::from(Exit::Temporary.code()));
        });
        info!("asked to stop");
    })
}
