//! `walrelay dlq list` and `dlq show`: read dead letters.

use std::ops::ControlFlow;

use walrelay_failure::{Exit, Failure};
use walrelay_sink_kind::dead_letters::{DlqRecord, Listed};

use super::render::{Columns, DlqTable, Fields, describe, json_line, status};
use super::{
    CommandResult, DlqTopic, EnvVars, print_bytes, print_foreign, print_notice, print_part,
    show_each,
};
use crate::cli::{ListArgs, Output, ShowArgs};

/// Runs `walrelay dlq list`.
pub(super) fn list(args: &ListArgs, env: EnvVars<'_>) -> CommandResult {
    let topic = DlqTopic::new(&args.dlq, env)?;
    let filter = topic.filter(&args.filter);
    let mut table = DlqTable::new(Columns {
        slot: topic.slot.is_none(),
        status: args.resolved,
        key: args.keys,
        destination: None,
    });
    let mut count = 0;
    if let Some(mut dead_letters) = topic.open()? {
        if let Some(since) = filter.written_since() {
            dead_letters.start_at(since)?;
        }
        let read = dead_letters.read(&|record| filter.matches(record));
        read?;
        let mut listed = dead_letters.selected(args.resolved);
        listed.truncate(args.filter.limit.map_or(usize::MAX, |limit| limit as usize));
        show_each(&mut *dead_letters, &listed, |listed, record| {
            count += 1;
            match args.output {
                Output::Table => {
                    table.add(listed, record);
                    Ok(ControlFlow::Continue(()))
                }
                Output::Json => {
                    let fields = Fields {
                        key: args.keys,
                        ..Fields::default()
                    };
                    print_part(&json_line(status(listed.outcome), record, fields))
                }
            }
        })?;
        print_foreign(&*dead_letters);
    }
    if args.output == Output::Table {
        if count > 0 {
            table.print()?;
        }
        let open = if args.resolved { "" } else { " open" };
        print_notice(&format!("{count}{open} dead letters"));
    }
    Ok(())
}

/// Runs `walrelay dlq show`.
pub(super) fn show(args: &ShowArgs, env: EnvVars<'_>) -> CommandResult {
    let Some(id) = args.position() else {
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
    let mut dead_letters = topic.open()?.ok_or_else(unknown)?;
    let slot = topic.slot.as_deref();
    let matches =
        |record: &DlqRecord| record.id == id && slot.is_none_or(|slot| slot == record.slot);
    dead_letters.read(&matches)?;
    let listed = dead_letters.selected(true);
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
    let shown = dead_letters.each(&listed, &mut |listed, record| {
        done = record
            .ok_or_else(unknown)
            .and_then(|record| print(args, listed, record));
        match done {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    shown?;
    Ok(done?)
}

fn print(args: &ShowArgs, listed: &Listed, record: &DlqRecord) -> Result<(), Failure> {
    match args.output {
        Output::Json => {
            let fields = Fields {
                key: true,
                headers: true,
                value: args.value,
            };
            print_bytes(&json_line(status(listed.outcome), record, fields))
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
            if let Some(why) = record.unrestored {
                let what =
                    format!("the event's value cannot be read out of the dead letter: {why}");
                return Err(
                    Failure::new("dlq-value-unrestored", Exit::Data, what).remedy(
                        "look for the event's id in the outbox table; a consumer of the topic shows the dead letter's own value",
                    ),
                );
            }
            print_bytes(record.value.as_deref().unwrap_or_default())
        }
        Output::Table => print_bytes(describe(listed, record).as_bytes()),
    }
}
