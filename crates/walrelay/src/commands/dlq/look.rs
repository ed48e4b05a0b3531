use std::io::{self, Write};

use walrelay_kafka_sink::dlq::{DlqRecord, Listed};

use super::filter::Filter;
use super::render::{Columns, Fields, Table, describe, line, status};
use super::{DlqTopic, Ended, Env, note, note_foreign, output, show_each};
use crate::cli::{Exit, Failure, ListArgs, Output, ShowArgs};
use crate::failures;

/// `walrelay dlq list`.
pub(super) fn list(args: &ListArgs, env: Env<'_>) -> Ended {
    let topic = DlqTopic::new(&args.dlq, env)?;
    let filter = Filter::new(&args.filter, topic.slot.as_deref());
    let columns = Columns {
        slot: topic.slot.is_none(),
        status: args.resolved,
        key: args.keys,
    };
    let mut table = Table::new(columns);
    let mut count = 0;
    if let Some(mut replayer) = topic.open()? {
        let failed = |error| failures::dead_letters(&error);
        if let Some(since) = filter.written_since() {
            replayer.start_at(since).map_err(failed)?;
        }
        replayer
            .read(|record| filter.fits(record))
            .map_err(failed)?;
        let mut listed = replayer.index().selected(args.resolved);
        listed.truncate(args.filter.limit.map_or(usize::MAX, |limit| limit as usize));
        show_each(&mut replayer, &listed, |listed, record| {
            count += 1;
            match args.output {
                Output::Table => {
                    table.add(columns, listed, record);
                    Ok(())
                }
                Output::Json => {
                    let fields = Fields {
                        key: args.keys,
                        ..Fields::default()
                    };
                    io::stdout().write_all(&line(status(listed.outcome), record, fields))
                }
            }
        })?;
        note_foreign(replayer.index());
    }
    if args.output == Output::Table {
        if count > 0 {
            table.write(&mut io::stdout().lock()).map_err(output)?;
        }
        let open = if args.resolved { "" } else { " open" };
        note(&format!("{count}{open} dead letters"));
    }
    Ok(())
}

/// `walrelay dlq show`.
pub(super) fn show(args: &ShowArgs, env: Env<'_>) -> Ended {
    let Some(id) = args.record() else {
        let failure = Failure::new("dlq-letter", Exit::Usage, "this names no dead letter").remedy(
            "a dead letter is named as LSN and row, as `walrelay dlq list` shows it: 0/16B3748 0",
        );
        return Err(vec![failure]);
    };
    let topic = DlqTopic::new(&args.dlq, env)?;
    let unknown = || {
        Failure::new(
            "dlq-letter",
            Exit::Usage,
            format!("there is no dead letter {id}"),
        )
        .remedy("`walrelay dlq list --resolved --all-slots` lists all")
    };
    let mut replayer = topic.open()?.ok_or_else(unknown)?;
    let slot = topic.slot.as_deref();
    let wanted =
        |record: &DlqRecord| record.id == id && slot.is_none_or(|slot| slot == record.slot);
    let failed = |error| failures::dead_letters(&error);
    replayer.read(wanted).map_err(failed)?;
    let listed: Vec<Listed> = replayer.index().selected(true);
    if listed.is_empty() {
        return Err(vec![unknown()]);
    }
    if args.value && args.output == Output::Table && listed.len() > 1 {
        let failure = Failure::new(
            "dlq-letter",
            Exit::Usage,
            format!("several slots have a dead letter {id}"),
        )
        .remedy("name one with --slot");
        return Err(vec![failure]);
    }
    let mut done = Ok(());
    replayer
        .each(&listed, |listed, record| {
            if done.is_ok() {
                done = record
                    .ok_or_else(unknown)
                    .and_then(|record| print(args, listed, record));
            }
        })
        .map_err(failed)?;
    done?;
    Ok(())
}

fn print(args: &ShowArgs, listed: &Listed, record: &DlqRecord) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = match args.output {
        Output::Json => {
            let fields = Fields {
                key: true,
                headers: true,
                value: args.value,
            };
            out.write_all(&line(status(listed.outcome), record, fields))
        }
        Output::Table if args.value => {
            if let Some(bytes) = record.omitted_bytes {
                return Err(Failure::new(
                    "dlq-value-omitted",
                    Exit::Data,
                    format!("the dead letter has no value: its {bytes} bytes were left out"),
                )
                .remedy("look for the event's id in the outbox table"));
            }
            out.write_all(record.value.as_deref().unwrap_or_default())
        }
        Output::Table => describe(&mut out, listed, record),
    };
    written.and_then(|()| out.flush()).map_err(output)
}
