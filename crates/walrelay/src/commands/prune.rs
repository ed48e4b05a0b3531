//! `walrelay prune`: rows that are confirmed and old enough are deleted.

use std::io::{self, Write};
use std::time::Instant;

use super::confirm::go_on;
use super::connect::{block_on, conn_info};
use super::{Ended, Env, load, output};
use crate::cli::{Exit, Failure, PruneArgs};
use crate::config::Config;
use crate::failures;
use crate::postgres::{ConfirmedError, PruneError, Pruning};
use walrelay_walsender::{Session, SessionKind};

/// `walrelay prune`.
pub(crate) fn prune(args: &PruneArgs, env: Env<'_>) -> Ended {
    let config = load(&args.config, env)?;
    let keep = args.keep.or_else(|| config.prune.as_ref()?.keep);
    let pruning = pruning(&config, keep)?;
    let info = conn_info(&config.source, env)?;
    let said = block_on(Box::pin(async {
        let connected = Session::connect(&info, SessionKind::Sql, &[]).await;
        let mut session = connected.map_err(|error| failures::postgres(error.into()))?;
        let old = pruning.count(&mut session).await.map_err(failed)?;
        if args.dry_run {
            return Ok(format!(
                "{old} rows are old enough to be deleted, if they are confirmed\n"
            ));
        }
        if old > 0 {
            agree(args, old)?;
        }
        let begun = Instant::now();
        let deleted = pruning.run(&mut session, |_| {}).await.map_err(failed)?;
        session.close().await;
        let seconds = begun.elapsed().as_secs_f64();
        Ok::<_, Failure>(format!("deleted {deleted} rows in {seconds:.1} s\n"))
    }))??;
    Ok(io::stdout().write_all(said.as_bytes()).map_err(output)?)
}

/// What the configuration says of it.
pub(super) fn pruning(
    config: &Config,
    keep: Option<std::time::Duration>,
) -> Result<Pruning, Failure> {
    let Some(prune) = &config.prune else {
        let what =
            "rows from before the slot would be deleted as well, which this relay never sent";
        return Err(Failure::new("prune-before-slot", Exit::Config, what).remedy(
            "set before_slot = true in [prune] if they may go, or snapshot in [source] to send them",
        ));
    };
    let keep = keep.ok_or_else(|| {
        Failure::new("prune-keep", Exit::Usage, "nothing says which rows stay")
            .remedy("say --keep 168h, or set keep in [prune]")
    })?;
    let own = std::iter::once(config.source.slot.clone());
    Ok(Pruning {
        slots: own.chain(prune.slots.iter().cloned()).collect(),
        tables: config.source.tables.clone(),
        column: prune.column.clone(),
        keep,
        batch: prune.batch,
        pause: prune.pause,
        lock_timeout: prune.lock_timeout,
    })
}

fn failed(error: PruneError) -> Failure {
    let what = error.to_string();
    match error {
        PruneError::Sql(error) | PruneError::Confirmed(ConfirmedError::Sql(error)) => {
            failures::postgres(error.into())
        }
        PruneError::Column(_) => Failure::new("prune-column", Exit::Config, what)
            .remedy("name it as column in [prune]"),
        PruneError::Confirmed(ConfirmedError::NotConfirmed { .. }) => {
            Failure::new("prune-not-confirmed", Exit::Temporary, what).remedy(
                "see that a relay runs for each of these slots: walrelay status. Nothing that is not confirmed is \
                 deleted",
            )
        }
    }
}

fn agree(args: &PruneArgs, rows: u64) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    // For people, also when standard error is closed.
    let _ = writeln!(
        io::stderr(),
        "{rows} rows will be deleted, if they are confirmed"
    );
    go_on().map_err(|why| {
        let what = format!("nothing was deleted: {why}");
        Failure::new("prune-not-agreed", Exit::Usage, what)
            .remedy("look with --dry-run, or say --yes")
    })
}
