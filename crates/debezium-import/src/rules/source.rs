//! `[source]`: the URL of Postgres, the slot, the publication and the tables.

use super::Absent::{Urgent, Write};
use super::Rule::{Copy, Ignore, Set, Unsupported, When};
use super::{Rules, apply_each};
use crate::draft::quoted;
use crate::input::{Program, Value, percent, variable_name};
use crate::translation::Translation;

const KEY_FORMAT: &str = "walrelay reads PEM, the JDBC driver wants DER: if the file is one, \
    `openssl pkcs8 -inform DER -in KEY -nocrypt -out KEY.pem`, and name that";
const ALLOW: &str = "as sslmode=prefer: allow would try without encryption first";
const OTHER_PLUGIN: &str = "walrelay reads pgoutput, and a slot keeps the plugin it was made with: \
    a slot of another plugin cannot be taken over, and walrelay stops at it with slot-plugin. \
    docs/start/debezium.md, \"A slot of another plugin\", has the steps to a new slot \
    without a gap";
const ALL_TABLES: &str = "if Debezium made the publication so, it is FOR ALL TABLES, and walrelay \
    refuses one with other tables than its own (publication-foreign-table). Make one for the outbox tables \
    before the hand-over: docs/start/debezium.md, \"A publication for all tables\"";

/// Options of the slot and the publication, in the order of the output.
const SETTINGS: Rules = rules! {
    "slot.name" => Copy("source", "slot"),
        absent Write("source", "slot", "debezium", "Debezium's default");
    "slot.failover" => When(rules! {
        "true" => Set("source", "failover", "true");
        "*" => Ignore("it is walrelay's default");
    });
    "slot.drop.on.stop" => When(rules! {
        "true" =>
            Unsupported("walrelay never drops its slot. Set it to false and restart Debezium \
                BEFORE the hand-over: otherwise the slot and the position are gone when Debezium \
                stops");
        "*" => Ignore("walrelay never drops its slot");
    });
    "plugin.name" => When(rules! {
        "pgoutput" => Ignore("pgoutput is the only plugin that walrelay reads");
        "*" => Unsupported(OTHER_PLUGIN);
    }), absent Urgent("it is not set, and Debezium's default is decoderbufs: ", OTHER_PLUGIN);
    "publication.name" => Copy("source", "publication"),
        absent Write("source", "publication", "dbz_publication", "Debezium's default");
    "publication.autocreate.mode" => When(rules! {
        "disabled" => Ignore("walrelay, too, uses the publication as it is");
        "filtered" => Ignore("the publication is there already, and walrelay never changes one");
        "no_tables" =>
            Ignore("the publication is there already, and walrelay never changes one; it must have \
                the outbox tables, and walrelay checks that it does");
        "*" => Unsupported(ALL_TABLES);
    }), absent Urgent("it is not set, and Debezium's default is all_tables: ", ALL_TABLES);
    "publish.via.partition.root" =>
        Ignore("it is a property of the publication, which stays as it is");
};

pub(super) fn apply(translation: &mut Translation<'_>, given: &[String]) {
    url(translation);
    apply_each(translation, SETTINGS);
    tables(translation, given);
    // A missing slot must be an error, as a new one would not continue from the old position.
    let comment = "the slot is Debezium's: none is ever recreated";
    translation.write("source", "create", "false".to_owned(), &[], Some(comment));
}

fn url(translation: &mut Translation<'_>) {
    let mut from = Vec::new();
    let user = needed(translation, "database.user", &mut from).in_url();
    let password = password(translation, &mut from);
    let host = needed(translation, "database.hostname", &mut from);
    let host = host.text().map_or_else(|| host.in_url(), hosts);
    let port = translation.find("database.port");
    let port = port.map_or(String::new(), |number| {
        from.push(number);
        let value = translation.value(number);
        translation.variables_of(&value);
        format!(":{}", value.in_url())
    });
    let database = needed(translation, "database.dbname", &mut from).in_url();
    let mut url = format!("postgres://{user}{password}@{host}{port}/{database}");
    let parameters = parameters(translation, &mut from);
    if !parameters.is_empty() {
        url = format!("{url}?{}", parameters.join("&"));
    }
    translation.write("source", "url", quoted(&url), &from, None);
}

/// Returns a part of the URL that the connector requires.
fn needed(translation: &mut Translation<'_>, name: &str, from: &mut Vec<usize>) -> Value {
    let value = if let Some(number) = translation.find(name) {
        from.push(number);
        translation.value(number)
    } else {
        let variable = match translation.program {
            Program::Connect => variable_name(name),
            // Debezium Server itself reads this variable.
            Program::Server => variable_name(&format!("debezium.source.{name}")),
        };
        let why = format!("it is not in the input; the configuration wants it from {variable}");
        translation.note(name, why, true);
        Value::variable(&variable)
    };
    translation.variables_of(&value);
    value
}

fn password(translation: &mut Translation<'_>, from: &mut Vec<usize>) -> String {
    let Some(number) = translation.find("database.password") else {
        return String::new();
    };
    from.push(number);
    let value = translation.secret(number, "PGPASSWORD");
    translation.variables_of(&value);
    if value.text().is_none() {
        translation.note(
            "source.url",
            "a password that goes into a URL must be percent-encoded where it has signs such as @ \
             / : ? # %; or remove it from the URL and name a password_file",
            false,
        );
    }
    format!(":{}", value.in_url())
}

/// Hosts for the URL, from names, addresses or a list of the JDBC driver.
fn hosts(text: &str) -> String {
    let hosts = text.split(',').map(str::trim);
    let hosts = hosts.map(|host| match host.matches(':').count() {
        _ if host.starts_with('[') => host.to_owned(),
        0 => percent(host),
        1 => host.to_owned(),
        _ => format!("[{host}]"),
    });
    hosts.collect::<Vec<_>>().join(",")
}

/// Translates TLS and other parameters of the JDBC driver into parameters of the URL.
fn parameters(translation: &mut Translation<'_>, from: &mut Vec<usize>) -> Vec<String> {
    const TIMEOUT: &str = "connect_timeout";
    let mut all: Vec<String> = Vec::new();
    for (number, name) in translation.below("") {
        let option = name.strip_prefix("database.");
        let Some(option) = option.or_else(|| name.strip_prefix("driver.")) else {
            continue;
        };
        let word = translation.word(number);
        let value = translation.value(number);
        let (parameter, text) = match option {
            "sslmode" if word == "allow" => (option, "prefer".to_owned()),
            // Debezium accepts both spellings.
            "sslmode" => (option, word.replace('_', "-")),
            "sslrootcert" | "sslcert" | "sslkey" => (option, value.in_url()),
            "tcpKeepAlive" if word == "false" => ("keepalives", "0".to_owned()),
            "connectTimeout" | "loginTimeout" if word.parse::<u32>().is_ok_and(|s| s > 0) => {
                if all.iter().any(|parameter| parameter.starts_with(TIMEOUT)) {
                    translation.ignored(number, "the other timeout for connecting counts");
                    continue;
                }
                (TIMEOUT, word.clone())
            }
            "ApplicationName" => ("application_name", value.in_url()),
            "targetServerType" if matches!(word.as_str(), "primary" | "master") => {
                ("target_session_attrs", "read-write".to_owned())
            }
            _ => continue,
        };
        all.push(format!("{parameter}={text}"));
        translation.variables_of(&value);
        from.push(number);
        let remark = match option {
            "sslmode" if word == "allow" => Some(ALLOW),
            "sslkey" => Some(KEY_FORMAT),
            _ => None,
        };
        translation.taken(number, "source.url", remark);
    }
    all
}

fn tables(translation: &mut Translation<'_>, given: &[String]) {
    let list = |names: &[String]| {
        let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
        format!("[{}]", names.join(", "))
    };
    let listed = translation.find("table.include.list");
    let listed = listed.or_else(|| translation.find("table.whitelist"));
    if !given.is_empty() {
        if let Some(number) = listed {
            translation.taken(number, "source.tables", Some("--table was given instead"));
        }
        translation.write("source", "tables", list(given), &[], Some("from --table"));
        return;
    }
    let Some(number) = listed else {
        translation.fatal(
            "table.include.list is missing, and Debezium captures every table: name the outbox \
             tables with --table SCHEMA.TABLE",
        );
        return;
    };
    let text = translation.text(number).unwrap_or_default();
    let mut names = Vec::new();
    for expression in text.split(',').map(str::trim) {
        match table(expression) {
            Some(name) if !names.contains(&name) => names.push(name),
            None if !expression.is_empty() => {
                translation.breaks(
                    number,
                    "it is a list of regular expressions, and one of them is more than the name \
                     of a table: name the outbox tables with --table SCHEMA.TABLE",
                );
                return translation.fatal(
                    "table.include.list does not name tables: name them with --table SCHEMA.TABLE",
                );
            }
            _ => {}
        }
    }
    if names.is_empty() {
        translation.fatal("table.include.list is empty: name the tables with --table SCHEMA.TABLE");
    }
    let upper = names.iter().any(|name| name.contains('"'));
    let remark = upper.then_some(
        "Debezium compares names without regard to case; walrelay wants those of the database",
    );
    translation.write("source", "tables", list(&names), &[number], remark);
}

/// Reads `schema.table` from an expression that matches one table. A name that is not a plain
/// identifier is in quotes.
fn table(expression: &str) -> Option<String> {
    // `.` is the separator; a table such as `public_outbox`, which `.` matches too, has no schema.
    let name = expression.replace("\\.", ".");
    let name = name.strip_prefix('^').unwrap_or(&name);
    let name = name.strip_suffix('$').unwrap_or(name);
    let (schema, table) = name.split_once('.')?;
    Some(format!("{}.{}", part(schema)?, part(table)?))
}

fn part(name: &str) -> Option<String> {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ' ');
    if name.is_empty() || !name.chars().all(allowed) {
        None
    } else if name.chars().all(lower) && !name.starts_with(char::is_numeric) {
        Some(name.to_owned())
    } else {
        Some(format!("\"{name}\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_that_mean_one_table() {
        for (expression, expected) in [
            ("public.outbox", Some("public.outbox")),
            ("public\\.outbox", Some("public.outbox")),
            ("^public\\.outbox$", Some("public.outbox")),
            ("app.Outbox", Some("app.\"Outbox\"")),
            ("app.order-outbox", Some("app.\"order-outbox\"")),
            ("app.1a", Some("app.\"1a\"")),
            ("outbox", None),
            (".*", None),
            ("public.*", None),
            ("public.outbox_.*", None),
            ("public.(a|b)", None),
            ("a.b.c", None),
            ("public.", None),
            ("public.\"x\"", None),
        ] {
            assert_eq!(table(expression).as_deref(), expected, "{expression}");
        }
    }

    #[test]
    fn hosts_of_a_url() {
        assert_eq!(hosts("db"), "db");
        assert_eq!(hosts("::1"), "[::1]");
        assert_eq!(hosts("a:1,b:2"), "a:1,b:2");
        assert_eq!(hosts("a/b"), "a%2Fb");
    }
}
