//! The log: its lines, which pipeline each belongs to, and its last warnings and errors.

mod pipeline_span;
mod printable;
mod warnings;

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _};

use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

pub use pipeline_span::pipeline_span;
pub use printable::{is_hidden, printable, printable_json, printable_lines};
pub use warnings::RecentErrors;

use crate::colours;
use crate::sections::{Log, LogFormat};
use pipeline_span::PipelineNames;
use printable::Printable;

/// Logs to standard error, and returns the list of the last warnings and errors. A second call
/// changes nothing: the first subscriber stays.
///
/// `slots`: those of the pipelines of this process. Of one, each JSON line has the member `slot`. Of
/// several, lines from the [span](crate::pipeline_span()) of a pipeline name it: JSON lines by the
/// members `pipeline` and `slot`.
pub fn log_to_stderr(
    log: Log,
    slots: &[&str],
    env: &dyn Fn(&str) -> Option<String>,
) -> RecentErrors {
    let terminal = io::stderr().is_terminal();
    let format = if log.format.is_json_on_stderr() {
        LogFormat::Json
    } else {
        LogFormat::Text
    };
    let log = Log { format, ..log };
    let (subscriber, recent) = subscriber(log, slots, io::stderr, colours(terminal, env));
    // Fails if a subscriber is set already.
    let _ = subscriber.try_init();
    recent
}

/// Creates the subscriber of [`log_to_stderr`] with another writer.
pub fn subscriber<W>(
    log: Log,
    slots: &[&str],
    writer: W,
    colours: bool,
) -> (impl Subscriber + Send + Sync, RecentErrors)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let several = slots.len() > 1;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_target(false)
        .with_ansi(colours)
        // If a line cannot be written, as to a full disk, the error would be written to standard
        // error as well, and that panics.
        .log_internal_errors(false);
    let lines = match log.format {
        // Lines of text show the spans that they are in.
        LogFormat::Text => lines
            .fmt_fields(format::debug_fn(text_field).delimited(" "))
            .with_filter(filter_fn(move |metadata| several || !metadata.is_span()))
            .boxed(),
        LogFormat::Auto | LogFormat::Json => {
            let slot = match slots {
                [slot] => Some((*slot).to_owned()),
                _ => None,
            };
            lines
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .map_event_format(|format| NamedLines {
                    format,
                    slot,
                    several,
                })
                .boxed()
        }
    };
    let recent = RecentErrors::new(several);
    let subscriber = tracing_subscriber::registry()
        .with(lines)
        .with(recent.clone())
        .with(LevelFilter::from_level(log.level));
    (subscriber, recent)
}

/// Writes a field of a line of text, as `tracing_subscriber` does, but escaped.
fn text_field(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() == "message" {
        return write!(Printable(out), "{value:?}");
    }
    if out.has_ansi_escapes() {
        write!(out, "\u{1b}[3m{}\u{1b}[0m\u{1b}[2m=\u{1b}[0m", field.name())?;
    } else {
        write!(out, "{}=", field.name())?;
    }
    write!(Printable(out), "{value:?}")
}

fn json(text: &str) -> serde_json::Value {
    serde_json::Value::from(text)
}

/// Fields whose text is an array of strings in JSON: `tracing` has no arrays.
const ARRAYS: [&str; 2] = ["tables", "causes"];

/// Replaces the string of each such member by the array that is its text.
fn with_arrays(mut line: String, event: &Event<'_>) -> String {
    for name in ARRAYS {
        if event.metadata().fields().field(name).is_none() {
            continue;
        }
        // Quotes inside a string are escaped, so this is found at a member alone.
        let member = format!("\"{name}\":");
        let Some(at) = line.find(&member).map(|at| at + member.len()) else {
            continue;
        };
        let mut values = serde_json::Deserializer::from_str(&line[at..]).into_iter::<String>();
        let Some(Ok(array)) = values.next() else {
            continue;
        };
        let end = at + values.byte_offset();
        if serde_json::from_str::<Vec<String>>(&array).is_ok() {
            line.replace_range(at..end, &array);
        }
    }
    line
}

/// Formats JSON lines, with the members that name the pipeline at the beginning of each object.
struct NamedLines<F> {
    format: F,
    /// The slot of the only pipeline.
    slot: Option<String>,
    /// Lines differ in their pipeline.
    several: bool,
}

impl<S, N, F> FormatEvent<S, N> for NamedLines<F>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.format
            .format_event(context, Writer::new(&mut line), event)?;
        let line = with_arrays(line, event);
        let rest = line.strip_prefix('{').unwrap_or(&line);
        let scope = context.event_scope().filter(|_| self.several);
        let names = PipelineNames::find(scope, |PipelineNames { name, slot }| {
            (Some(name.clone()), Some(slot.clone()))
        });
        let (name, slot) = names.unwrap_or_else(|| (None, self.slot.clone()));
        writer.write_char('{')?;
        for (key, value) in [("pipeline", name), ("slot", slot)] {
            // The event's own member stands alone: parsers differ in which of two they take.
            let own = event.metadata().fields().field(key).is_some();
            if let Some(value) = value.filter(|_| !own) {
                write!(writer, "\"{key}\":{},", json(&value))?;
            }
        }
        writer.write_str(&printable_json(rest))
    }
}

#[cfg(test)]
mod tests;
