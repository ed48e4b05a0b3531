//! `[source]`: where Postgres is, the slot, the publication, the tables.

use super::draft::{Refused, Toml};
use super::import::Import;
use super::settings::Kind;
use super::value::{Value, percent};

/// Debezium's defaults, which are not walrelay's.
const SLOT: &str = "debezium";
const PUBLICATION: &str = "dbz_publication";

pub(super) fn source(import: &mut Import, tables: &[String]) {
    url(import);
    slot(import);
    publication(import);
    self::tables(import, tables);
    // A slot that is missing means that something is wrong, and never that one is to be made.
    import.line_of_default(
        "source",
        "create",
        Toml::Bool(false),
        "the slot is Debezium's: none is ever made anew",
    );
}

/// A part of the URL that the connector cannot do without.
fn needed(import: &mut Import, name: &str, from: &mut Vec<usize>) -> String {
    let value = if let Some(number) = import.find(name) {
        from.push(number);
        import.value(number)
    } else {
        let variable = match import.kind {
            Kind::Connect => super::value::variable_name(name),
            // What Debezium Server itself looks for in its environment.
            Kind::Server => super::value::variable_name(&format!("debezium.source.{name}")),
        };
        import.urgent(
            name,
            format!("it is not in the input; the configuration wants it from {variable}"),
        );
        Value::variable(&variable)
    };
    import.variables_of(&value);
    if name == "database.hostname"
        && let Some(text) = value.text()
    {
        return hosts(text);
    }
    value.in_url()
}

/// Names, addresses, and the lists that the JDBC driver takes.
fn hosts(text: &str) -> String {
    let host = |host: &str| {
        let host = host.trim();
        if host.matches(':').count() > 1 && !host.starts_with('[') {
            format!("[{host}]")
        } else if host.starts_with('[') || host.contains(':') {
            host.to_owned()
        } else {
            percent(host)
        }
    };
    text.split(',').map(host).collect::<Vec<_>>().join(",")
}

fn url(import: &mut Import) {
    let mut from = Vec::new();
    let user = needed(import, "database.user", &mut from);
    let password = match import.find("database.password") {
        Some(number) => {
            from.push(number);
            let value = import.secret(number, "PGPASSWORD");
            import.variables_of(&value);
            if value.text().is_none() {
                import.note(
                    "source.url",
                    "a password that goes into a URL must be percent-encoded where it has signs such \
                     as @ / : ? # %; or take it out of the URL and name a password_file",
                );
            }
            format!(":{}", value.in_url())
        }
        None => String::new(),
    };
    let host = needed(import, "database.hostname", &mut from);
    let port = match import.find("database.port") {
        Some(number) => {
            from.push(number);
            let value = import.value(number);
            import.variables_of(&value);
            format!(":{}", value.in_url())
        }
        None => String::new(),
    };
    let database = needed(import, "database.dbname", &mut from);
    let parameters = parameters(import, &mut from);
    let url = format!("postgres://{user}{password}@{host}{port}/{database}{parameters}");
    import.line("source", "url", Toml::Text(url), &from, Refused::Breaks);
}

/// TLS and what else the JDBC driver is told.
fn parameters(import: &mut Import, from: &mut Vec<usize>) -> String {
    let mut all: Vec<(&'static str, String)> = Vec::new();
    let numbers: Vec<usize> = import.open().collect();
    for number in numbers {
        let name = import.name(number).to_owned();
        let Some(option) = name
            .strip_prefix("database.")
            .or_else(|| name.strip_prefix("driver."))
        else {
            continue;
        };
        let word = import.word(number);
        let value = import.value(number);
        match option {
            "sslmode" if word == "allow" => {
                all.push(("sslmode", "prefer".to_owned()));
                from.push(number);
                import.taken(
                    number,
                    "source.url",
                    Some("as sslmode=prefer: allow would try without encryption first"),
                );
                continue;
            }
            // Debezium knows both spellings.
            "sslmode" => all.push(("sslmode", word.replace('_', "-"))),
            "sslrootcert" => all.push(("sslrootcert", value.in_url())),
            "sslcert" => all.push(("sslcert", value.in_url())),
            "sslkey" => {
                all.push(("sslkey", value.in_url()));
                import.taken(number, "source.url", Some(KEY_FORMAT));
            }
            "tcpKeepAlive" if word == "false" => all.push(("keepalives", "0".to_owned())),
            "tcpKeepAlive" => {
                import.none(number, "it is what walrelay does anyway");
                continue;
            }
            "connectTimeout" | "loginTimeout" if word.parse::<u32>().is_ok_and(|s| s > 0) => {
                if all.iter().any(|(name, _)| *name == "connect_timeout") {
                    import.none(number, "the other timeout for connecting counts");
                    continue;
                }
                all.push(("connect_timeout", word));
            }
            "ApplicationName" => all.push(("application_name", value.in_url())),
            "targetServerType" if matches!(word.as_str(), "primary" | "master") => {
                all.push(("target_session_attrs", "read-write".to_owned()));
            }
            _ => continue,
        }
        import.variables_of(&value);
        from.push(number);
    }
    let pairs: Vec<String> = all
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if pairs.is_empty() {
        String::new()
    } else {
        format!("?{}", pairs.join("&"))
    }
}

const KEY_FORMAT: &str = "walrelay reads PEM, the JDBC driver wants DER: if the file is one, \
    `openssl pkcs8 -inform DER -in KEY -nocrypt -out KEY.pem`, and name that";

fn slot(import: &mut Import) {
    match import.find("slot.name") {
        Some(number) => {
            let value = import.value(number);
            let value = import.configured(&value);
            import.line("source", "slot", value, &[number], Refused::Breaks);
        }
        None => import.line_of_default(
            "source",
            "slot",
            Toml::Text(SLOT.to_owned()),
            "Debezium's default",
        ),
    }
    if let Some(number) = import.find("slot.failover") {
        if import.word(number) == "true" {
            import.line(
                "source",
                "failover",
                Toml::Bool(true),
                &[number],
                Refused::Soft,
            );
        } else {
            import.none(number, "it is walrelay's default");
        }
    }
    if let Some(number) = import.find("slot.drop.on.stop") {
        if import.word(number) == "true" {
            import.unsupported(
                number,
                "walrelay never drops its slot. Set it to false and restart Debezium BEFORE the \
                 hand-over: otherwise the slot and the position are gone when Debezium stops",
            );
        } else {
            import.none(number, "walrelay never drops its slot");
        }
    }
    let pgoutput = import.find("plugin.name");
    match pgoutput {
        Some(number) if import.word(number) == "pgoutput" => {
            import.none(number, "pgoutput is the only plugin that walrelay reads");
        }
        Some(number) => import.unsupported(number, OTHER_PLUGIN),
        None => import.urgent(
            "plugin.name",
            format!("it is not set, and Debezium's default is decoderbufs: {OTHER_PLUGIN}"),
        ),
    }
}

const OTHER_PLUGIN: &str = "walrelay reads pgoutput, and a slot keeps the plugin it was made with: \
    a slot of another plugin cannot be taken over, and walrelay stops at it with slot-plugin. \
    docs/MIGRATING-FROM-DEBEZIUM.md, \"A slot of another plugin\", has the steps to a new slot \
    without a gap";

fn publication(import: &mut Import) {
    match import.find("publication.name") {
        Some(number) => {
            let value = import.value(number);
            let value = import.configured(&value);
            import.line("source", "publication", value, &[number], Refused::Breaks);
        }
        None => import.line_of_default(
            "source",
            "publication",
            Toml::Text(PUBLICATION.to_owned()),
            "Debezium's default",
        ),
    }
    match import.find("publication.autocreate.mode") {
        Some(number) => match import.word(number).as_str() {
            "disabled" => import.none(number, "walrelay, too, takes the publication as it is"),
            "filtered" => import.none(
                number,
                "the publication is there already, and walrelay never changes one",
            ),
            "no_tables" => import.none(
                number,
                "the publication is there already, and walrelay never changes one; it must have \
                 the outbox tables, and walrelay checks that it does",
            ),
            _ => import.unsupported(number, ALL_TABLES),
        },
        None => import.urgent(
            "publication.autocreate.mode",
            format!("it is not set, and Debezium's default is all_tables: {ALL_TABLES}"),
        ),
    }
    if let Some(number) = import.find("publish.via.partition.root") {
        import.none(
            number,
            "it is a property of the publication, which stays as it is",
        );
    }
}

const ALL_TABLES: &str = "if Debezium made the publication so, it is FOR ALL TABLES, and walrelay \
    refuses one with other tables than its own (publication-foreign-table). Make one for the outbox tables \
    before the hand-over: docs/MIGRATING-FROM-DEBEZIUM.md, \"A publication for all tables\"";

fn tables(import: &mut Import, given: &[String]) {
    let listed = import
        .find("table.include.list")
        .or_else(|| import.find("table.whitelist"));
    if !given.is_empty() {
        if let Some(number) = listed {
            import.taken(number, "source.tables", Some("--table was given instead"));
        }
        import.line_of_default(
            "source",
            "tables",
            Toml::List(given.to_vec()),
            "from --table",
        );
        return;
    }
    let Some(number) = listed else {
        import.fatal(
            "table.include.list is missing, and Debezium captures every table: name the outbox \
             tables with --table SCHEMA.TABLE",
        );
        return;
    };
    let text = import.text(number).unwrap_or_default();
    let mut names = Vec::new();
    for expression in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        match table(expression) {
            Some(name) if names.contains(&name) => {}
            Some(name) => names.push(name),
            None => {
                import.breaks(
                    number,
                    "it is a list of regular expressions, and one of them is more than the name of \
                     a table: name the outbox tables with --table SCHEMA.TABLE",
                );
                import.fatal(
                    "table.include.list does not name tables: name them with --table SCHEMA.TABLE",
                );
                return;
            }
        }
    }
    if names.is_empty() {
        import.fatal("table.include.list is empty: name the tables with --table SCHEMA.TABLE");
    }
    let upper = names.iter().any(|name| name.contains('"'));
    let remark = upper.then_some(
        "Debezium compares names without regard to case; walrelay wants those of the database",
    );
    let list = Toml::List(names);
    import.line_with("source", "tables", list, &[number], Refused::Breaks, remark);
}

/// `schema.table` of an expression that means one table, as walrelay writes it: in quotes where it
/// is not a plain name.
fn table(expression: &str) -> Option<String> {
    // The dot between them matches any character; a table `public_outbox` has no schema.
    let name = expression.replace("\\.", ".");
    let name = name.strip_prefix('^').unwrap_or(&name);
    let name = name.strip_suffix('$').unwrap_or(name);
    let (schema, table) = name.split_once('.')?;
    Some(format!("{}.{}", part(schema)?, part(table)?))
}

fn part(name: &str) -> Option<String> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ' ');
    if name.is_empty() || !name.chars().all(plain) {
        return None;
    }
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let digit = name.starts_with(|c: char| c.is_numeric());
    if name.chars().all(lower) && !digit {
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
