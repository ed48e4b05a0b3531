//! `walrelay init`: creates outbox table, publication, slot and role, or prints the SQL that does.

use std::fmt;

use secrecy::ExposeSecret as _;
use serde::Serialize;
use serde_json::json;
use walrelay_event_router::Template;
use walrelay_failure::Failure;
use walrelay_postgres_source::epoch::raise_for_new_slot;
use walrelay_postgres_source::script::EmitFunction;
use walrelay_postgres_source::{
    Action, Facts, Moment, OutboxTable, PostgresError, SetupError, TableSetupError, Wanted,
    account, assigned_columns, dead_rows, inspect, last_error, lock_setup, plan, position_note,
    run_note, script, snapshot_record, unmark, unmarked,
};
use walrelay_walsender::{Error, Session, SessionKind, quote_literal};

use super::consumer;
use super::preset_table::{marks, preset_table};
use crate::cli::InitArgs;
use crate::commands::assembly::{admin_info, block_on, conn_info, wanted};
use crate::commands::{CommandResult, EnvVars, load, print_as};
use crate::config::{PipelineConfig, RouterConfig};

/// The comment above the function `outbox.emit` in scripts.
const EMIT: &str = "An outbox without a table: services call outbox.emit in the transaction of their data, and the\n\
                    -- event goes into the log alone. Needs prefix = \"outbox\" in [source.messages].";

/// The comment above the function `outbox.emit_all` in scripts.
const EMIT_ALL: &str = "Several events in one call of outbox.emit_all: they go into the log as one message, which costs the\n\
                        -- server less to send than a message each. Upgrade every relay of the database first.";

/// The comment above the function `outbox.uuidv7` in scripts.
const UUIDV7: &str = "The function that makes the outbox's ids.";

/// Runs `walrelay init`.
pub(crate) fn init(args: &InitArgs, env: EnvVars<'_>) -> CommandResult {
    if args.consumer {
        let sql = consumer::script();
        return Ok(print_as(args.output, &sql, &json!({ "sql": sql }))?);
    }
    let config = load(&args.config, env)?.pipeline;
    let wanted = Wanted {
        create: true,
        ..wanted(&config)
    };
    let mut table = outbox_table(&config, &wanted);
    if let Some(preset) = &args.preset {
        table = Some(preset_table(preset, &config, &wanted, table)?);
    }
    let mut info = conn_info(&config.source, env)?;
    let mut role = args.role.clone();
    if let Some(url) = &args.admin_url {
        let admin = admin_info(url.expose_secret(), &info, env)?;
        role.get_or_insert(info.user);
        info = admin;
    }
    if args.dry_run {
        // Without `--role`, the relay connects as the user of its URL.
        let role = role.as_deref().unwrap_or(&info.user);
        let sql = whole_script(&wanted, role, table.as_ref());
        return Ok(print_as(args.output, &sql, &json!({ "sql": sql }))?);
    }
    let done = block_on(async {
        let mut session = Session::connect(&info, SessionKind::Sql, &[]).await?;
        create(&mut session, &wanted, role.as_deref(), table.as_ref()).await
    })?;
    let done = done.map_err(Failure::from)?;
    Ok(print_as(args.output, &done, &done)?)
}

/// The result of `init`.
#[derive(Debug, Default, Serialize)]
struct Done {
    /// The objects that it created: kind and name.
    created: Vec<String>,
    notes: Vec<String>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.created.is_empty() && self.notes.is_empty() {
            return writeln!(f, "everything is there already");
        }
        for object in &self.created {
            writeln!(f, "created {object}")?;
        }
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

/// Returns the outbox tables to create. `None`: the route consists of templates, which do not say
/// what the columns are for; a table for them must exist.
fn outbox_table(config: &PipelineConfig, wanted: &Wanted) -> Option<OutboxTable> {
    let RouterConfig::Debezium(debezium) = &config.router else {
        return None;
    };
    let times = config.cloud_events.iter().flat_map(|of| &of.time);
    let times: Vec<String> = times
        .flat_map(Template::columns)
        .map(str::to_owned)
        .collect();
    let snapshot = wanted.snapshot.as_ref();
    let unsent = snapshot.is_some_and(|rows| rows.unsent && rows.filter.is_none());
    let set = marks(config);
    let by_sent_at = assigned_columns(&set).iter().any(|name| name == "sent_at");
    let mut table = OutboxTable::new(
        &debezium.options,
        &wanted.columns,
        &times,
        unsent && !by_sent_at,
        config
            .prune
            .as_ref()
            .and_then(|prune| prune.column.as_deref()),
    );
    table.add_state_columns(&set, unsent);
    Some(table)
}

/// Returns the SQL that prepares a database, in the order in which it must run. `table`: the outbox
/// tables to create.
fn whole_script(wanted: &Wanted, role: &str, table: Option<&OutboxTable>) -> String {
    let tables = table.filter(|_| !wanted.tables.is_empty()).map(|table| {
        let tables = wanted.tables.iter().map(|name| table.create(name));
        let why = "The outbox: services insert here, in the transaction of their data.";
        (why, tables.collect::<Vec<_>>().join("\n"))
    });
    let emit = wanted.messages.as_deref().into_iter();
    let emit = emit.flat_map(|prefix| {
        EmitFunction::ALL.map(|function| {
            let why = match function {
                EmitFunction::Emit => EMIT,
                EmitFunction::EmitAll => EMIT_ALL,
            };
            (why, function.create(prefix))
        })
    });
    let seen = if wanted.tables.is_empty() {
        "What the relay sees: no table. A publication must be named all the same."
    } else {
        "What the relay sees: inserts of the outbox, nothing else."
    };
    let last = if wanted.snapshot.is_some() {
        (
            "For the snapshot, the relay reads the tables. It makes the slot itself, after it.",
            script::grant_select(&wanted.tables, role),
        )
    } else {
        (
            "From here on Postgres keeps the log until the relay has confirmed it: last, and not\n\
             -- long before the relay is started.",
            script::ensure_slot(&wanted.slot, wanted.failover),
        )
    };
    let account = wanted.account.as_ref().map(|_| {
        let why = "The account of sent rows: only rows that it has are deleted.";
        (why, account::create_sql(Some(role)))
    });
    let noted = (
        "Where the relay notes what the slot has confirmed: a slot that something else moves or\n\
         -- recreates stops the next start.",
        position_note::create_sql(&wanted.slot, Some(role)),
    );
    let read = wanted.snapshot.as_ref().map(|_| {
        let why = "Where the relay records that it has read the snapshot to its end.";
        (why, snapshot_record::create_sql(&wanted.slot, Some(role)))
    });
    let unmarked = wanted.marks.as_ref().map(|_| {
        let why = "Rows that were sent, and cannot be marked at once, for example because they are locked.";
        (why, unmarked::create_sql(Some(role)))
    });
    let dead = wanted.dead_marks.as_ref().map(|_| {
        let why =
            "Rows of dead letters, so that they are marked, and marked as sent after a redrive.";
        (why, dead_rows::create_sql(Some(role)))
    });
    let usage = script::grant_usage(&wanted.tables, role).filter(|_| uses_rows(wanted));
    let usage = usage.map(|sql| ("The relay reads or changes rows of these schemas.", sql));
    let ended = (
        "The error with which a run ends: walrelay status and check show it while no relay runs.",
        last_error::create_sql(Some(role)),
    );
    let run = (
        "What a run notes for the next one: its start and end, and what the destination had and has lost.",
        run_note::create_sql(Some(role)),
    );
    let others = [
        (
            seen,
            script::ensure_publication(&wanted.publication, &wanted.tables),
        ),
        (
            "Who the relay is: may replicate, owns nothing, reads no table. Give it a password by\n\
             -- \\password, or by what your service has.",
            script::ensure_role(role),
        ),
    ];
    let ids = table.filter(|table| table.needs_uuidv7());
    let ids = ids.map(|_| (UUIDV7, consumer::UUIDV7.trim_end().to_owned()));
    let parts = ids.into_iter().chain(tables).chain(emit).chain(others);
    let parts = parts
        .chain(usage)
        .chain(account)
        .chain(unmarked)
        .chain(dead)
        .chain(read);
    let parts = parts.chain([noted, ended, run, last]);
    let parts = parts.map(|(why, sql)| format!("-- {why}\n{sql}\n"));
    parts.collect::<Vec<_>>().join("\n")
}

/// Returns true if the relay reads or changes rows of its tables.
fn uses_rows(wanted: &Wanted) -> bool {
    wanted.snapshot.is_some() || wanted.marks.is_some() || wanted.account.is_some()
}

/// Creates what is missing.
async fn create(
    session: &mut Session,
    wanted: &Wanted,
    role: Option<&str>,
    new_table: Option<&OutboxTable>,
) -> Result<Done, PostgresError> {
    let mut done = Done::default();
    lock_setup(session, &wanted.slot).await?;
    let facts = create_tables(session, wanted, new_table, &mut done).await?;
    let plan = plan(wanted, &facts, Moment::Init)?;
    if let Some(prefix) = &wanted.messages {
        for function in EmitFunction::ALL {
            create_emit(session, function, prefix, &mut done).await?;
        }
    }
    if let Some(role) = role {
        create_role(session, role, &mut done).await?;
        grant_rows(session, wanted, role).await?;
    }
    create_state(session, wanted, role, &mut done).await?;
    carry_out(session, wanted, plan.actions, &mut done).await?;
    done.notes.extend(plan.notes);
    Ok(done)
}

/// Creates missing outbox tables, if nothing else prevents the setup. Returns the facts after that.
async fn create_tables(
    session: &mut Session,
    wanted: &Wanted,
    new_table: Option<&OutboxTable>,
    done: &mut Done,
) -> Result<Facts, PostgresError> {
    let mut facts = inspect(session, wanted).await?;
    // Before anything is created, fail for every other reason than a missing table.
    match plan(wanted, &facts, Moment::Init) {
        Ok(_) => {}
        Err(SetupError::Table(TableSetupError::Missing { .. })) if new_table.is_some() => {}
        Err(error) => return Err(error.into()),
    }
    for (table, existing) in &facts.tables {
        if existing.is_none()
            && let Some(new_table) = new_table
        {
            if new_table.needs_uuidv7() {
                create_uuidv7(session, done).await?;
            }
            session.query(&new_table.create(table)).await?;
            done.created.push(format!("table {table}"));
        } else if new_table.is_some_and(OutboxTable::has_indexes) {
            let note = format!(
                "table {table} exists, and is left as it is: --preset makes missing tables only"
            );
            done.notes.push(note);
        }
    }
    if !done.created.is_empty() {
        facts = inspect(session, wanted).await?;
    }
    Ok(facts)
}

/// Creates the relay's role, unless it exists.
async fn create_role(session: &mut Session, role: &str, done: &mut Done) -> Result<(), Error> {
    let existing = format!(
        "SELECT FROM pg_catalog.pg_roles WHERE rolname = {}",
        quote_literal(role)
    );
    if session.query(&existing).await?.is_empty() {
        session.query(&script::create_role(role)).await?;
        done.created
            .push(format!("role {role}; give it a password"));
    }
    Ok(())
}

/// Grants the role the rows that the relay reads or changes.
async fn grant_rows(session: &mut Session, wanted: &Wanted, role: &str) -> Result<(), Error> {
    if uses_rows(wanted)
        && let Some(sql) = script::grant_usage(&wanted.tables, role)
    {
        session.query(&sql).await?;
    }
    if wanted.snapshot.is_some() && !wanted.tables.is_empty() {
        session
            .query(&script::grant_select(&wanted.tables, role))
            .await?;
    }
    Ok(())
}

/// Creates the tables and sequences in which the relay keeps its own state, and lets `role` write them.
async fn create_state(
    session: &mut Session,
    wanted: &Wanted,
    role: Option<&str>,
    done: &mut Done,
) -> Result<(), PostgresError> {
    if wanted.snapshot.is_some() {
        let sql = snapshot_record::create_sql(&wanted.slot, role);
        session.query(&sql).await?;
    }
    if wanted.marks.is_some() {
        session.query(&unmarked::create_sql(role)).await?;
    }
    if wanted.dead_marks.is_some() {
        session.query(&dead_rows::create_sql(role)).await?;
    }
    session.query(&last_error::create_sql(role)).await?;
    session.query(&run_note::create_sql(role)).await?;
    if position_note::grant(session, &wanted.slot, role).await? {
        let slot = &wanted.slot;
        done.created
            .push(format!("sequence for the noted position of slot {slot}"));
    }
    if wanted.account.is_some() {
        if !account::may_write(session).await? {
            let tables = "tables walrelay_state.account and walrelay_state.accounts";
            done.created.push(tables.to_owned());
        }
        session.query(&account::create_sql(role)).await?;
    }
    Ok(())
}

/// Creates the publication and the slot as planned.
async fn carry_out(
    session: &mut Session,
    wanted: &Wanted,
    actions: Vec<Action>,
    done: &mut Done,
) -> Result<(), PostgresError> {
    let makes_slot = actions.contains(&Action::CreateSlot);
    for action in actions {
        match action {
            Action::CreatePublication => {
                let mut sql = script::create_publication(&wanted.publication, &wanted.tables);
                if makes_slot {
                    // In the same transaction.
                    sql += &script::mark_publication(&wanted.publication, &wanted.slot);
                }
                session.query(&sql).await?;
                done.created
                    .push(format!("publication {}", wanted.publication));
            }
            Action::CreateSlot => {
                raise_for_new_slot(session, &wanted.slot).await?;
                position_note::forget(session, &wanted.slot).await?;
                snapshot_record::forget(session, &wanted.slot).await?;
                account::begin(session, wanted).await?;
                let sql = script::create_slot(&wanted.slot, wanted.failover);
                session.query(&sql).await?;
                position_note::made(session, &wanted.slot).await?;
                unmark(session, wanted).await?;
                done.created.push(format!("slot {}", wanted.slot));
            }
            Action::FinishSetup => unmark(session, wanted).await?,
            // Only `run` plans these.
            Action::DropSlot | Action::Snapshot | Action::EnableFailover => {
                unreachable!("init changes no slot and reads no rows")
            }
        }
    }
    Ok(())
}

/// Creates a function that writes events. An existing one is not replaced: services may rely on its
/// prefix.
async fn create_emit(
    session: &mut Session,
    function: EmitFunction,
    prefix: &str,
    done: &mut Done,
) -> Result<(), Error> {
    let name = function.name();
    let rows = session.query(function.find()).await?;
    let Some(row) = rows.first() else {
        session.query(&function.create(prefix)).await?;
        done.created.push(format!("function {name}"));
        return Ok(());
    };
    if !function.is(row.get("prosrc").unwrap_or_default(), prefix) {
        done.notes.push(format!(
            "function {name} is there, and not as this version makes it for this prefix: left as it is. The \
             SQL of --dry-run replaces it"
        ));
    }
    Ok(())
}

/// Creates the function `outbox.uuidv7`, unless it exists.
async fn create_uuidv7(session: &mut Session, done: &mut Done) -> Result<(), Error> {
    let sql =
        "SELECT FROM pg_catalog.pg_proc WHERE oid = pg_catalog.to_regprocedure('outbox.uuidv7()')";
    if session.query(sql).await?.is_empty() {
        session.query(consumer::UUIDV7).await?;
        done.created.push("function outbox.uuidv7".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
