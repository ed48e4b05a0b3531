//! Names with quotes, dollars, backslashes and newlines are names, in every statement that walrelay
//! makes or prints.

use std::fs;
use std::path::PathBuf;

use fastrand::Rng;
use walrelay_testkit::{Db, rng};

use crate::check::Checked;
use crate::rig::{Rig, assert_has, assert_lacks, done, output_with, said, stdout};

/// Texts that end a constant, a name, a body or a comment somewhere, or change where SQL is made.
const PIECES: [&str; 24] = [
    "\"",
    "'",
    "\\",
    "$",
    "$do$",
    "$emit$",
    "$$",
    "$do2$",
    "\n",
    "\r\n",
    "\t",
    ";",
    "--",
    "/*",
    "*/",
    "é",
    "💥",
    "\u{202e}",
    " {prefix}",
    ":name",
    "%s",
    "A",
    "b c",
    ".",
];
/// Bytes of the longest name of Postgres.
const LONGEST: usize = 63;

/// Names of the objects that `init` makes.
#[derive(Debug)]
struct Names {
    schema: String,
    table: String,
    column: String,
    publication: String,
    role: String,
    prefix: String,
}

impl Names {
    fn random(rng: &mut Rng) -> Self {
        Self {
            schema: name(rng),
            table: name(rng),
            column: name(rng),
            publication: name(rng),
            role: name(rng),
            prefix: name(rng),
        }
    }

    /// The usual configuration of a rig, with these names.
    fn config(&self, rig: &Rig, more: &str) -> PathBuf {
        let route = format!(
            "[router.debezium]\n\"table.field.event.key\" = {}\n\
             \"table.field.event.timestamp\" = {}\n",
            toml(&self.column),
            toml(&self.time()),
        );
        let config = rig.config();
        let text = fs::read_to_string(&config).expect("the configuration");
        let table = format!("{}.{}", ident(&self.schema), ident(&self.table));
        let source = format!(
            "publication = {}\ntables = [{}]\n{more}",
            toml(&self.publication),
            toml(&table)
        );
        let text = text
            .replace("tables = [\"public.outbox\"]\n", &source)
            .replace("[router.debezium]\n", &route);
        fs::write(&config, text).expect("the configuration is written");
        config
    }

    /// Another column.
    fn time(&self) -> String {
        let mut name: String = self.column.chars().rev().collect();
        while name.len() > LONGEST - 2 {
            name.pop();
        }
        name + "_t"
    }

    /// Asserts that exactly the objects of these names are there.
    fn assert_there(&self, db: &Db) {
        let column = |sql: &str| -> Vec<String> { db.column(sql, &[]) };
        assert_eq!(
            column("SELECT pubname::text FROM pg_publication"),
            [self.publication.as_str()]
        );
        let published = db.query(
            "SELECT schemaname::text, tablename::text FROM pg_publication_tables",
            &[],
        );
        let published: Vec<(String, String)> = published
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
        assert_eq!(published, [(self.schema.clone(), self.table.clone())]);
        let roles = column("SELECT rolname::text FROM pg_roles WHERE oid >= 16384");
        assert_eq!(roles, [self.role.as_str()]);
        let columns = column(
            "SELECT attname::text FROM pg_attribute JOIN pg_publication_rel ON attrelid = prrelid \
             WHERE attnum > 0",
        );
        assert!(columns.contains(&self.column), "{columns:?}");
        assert!(columns.contains(&self.time()), "{columns:?}");
    }

    /// Removes them.
    fn drop(&self, db: &Db) {
        db.batch(&format!(
            "DROP PUBLICATION {publication}; DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}; \
             DROP SCHEMA outbox CASCADE; DROP OWNED BY {role}; DROP ROLE {role}",
            publication = ident(&self.publication),
            schema = ident(&self.schema),
            role = ident(&self.role)
        ));
    }
}

/// A name of up to 63 bytes, often just as long.
fn name(rng: &mut Rng) -> String {
    let mut name = String::new();
    for _ in 0..rng.usize(1..30) {
        name.push_str(rng.choice(PIECES).expect("a piece"));
    }
    while name.len() > LONGEST {
        name.pop();
    }
    name
}

/// The same rules as [`walrelay_walsender::quote_ident`], written down once more.
fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A basic string of TOML.
fn toml(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
            // The configuration replaces `${`, which no two pieces make.
            c => c.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

/// The script of `init --dry-run`, sent as one query, and `init` itself make the objects with exactly
/// these names, and each finds those of the other.
#[test]
fn init_and_its_script_make_the_names_as_they_are() {
    let rig = Rig::without_broker(17);
    let db = rig.db();
    let mut rng = rng("init_and_its_script");
    for _ in 0..12 {
        let names = Names::random(&mut rng);
        eprintln!("{names:?}");
        // With a snapshot the script has no slot, which would need a transaction of its own.
        let messages = format!("messages.prefix = {}\n", toml(&names.prefix));
        let config = names.config(&rig, &format!("snapshot = \"initial\"\n{messages}"));
        db.batch(&format!("CREATE SCHEMA {}", ident(&names.schema)));
        let role = format!("--role={}", names.role);
        let script = stdout(&output_with("init --dry-run", &config, &[&role]));
        db.batch(&script);
        names.assert_there(&db);
        // The body of the function is what `init` makes for this prefix, and it runs.
        db.batch("SELECT outbox.emit('order', 'key', '{}')");
        db.batch("SELECT outbox.emit_all('[{\"aggregate\": \"order\", \"key\": \"key\"}]')");
        // What is there already is not made again.
        db.batch(&script);
        let again = stdout(&output_with("init", &config, &[&role]));
        assert_lacks(
            &again,
            &[
                "created table",
                "created publication",
                "created role",
                "outbox.emit is there",
                "outbox.emit_all is there",
            ],
        );
        names.drop(&db);

        let made = stdout(&output_with("init", &config, &[&role]));
        assert_has(
            &made,
            &["created table ", "created publication ", "created role "],
        );
        names.assert_there(&db);
        db.batch(&script);
        names.assert_there(&db);
        names.drop(&db);
        db.batch(&format!("DROP SCHEMA {}", ident(&names.schema)));
    }
}

/// Every command that makes SQL works with such names: `init`, `check`, `run` with marks, `bookmark`,
/// `resend`, `prune`, `cutover plan`, `status`.
#[test]
fn a_relay_and_its_commands_use_the_names_as_they_are() {
    let rig = Rig::new(17);
    let db = rig.db();
    let nasty = |end: &str| format!("a\"b'c\\d$do$e\n;--/*é{end}");
    let names = Names {
        schema: nasty("s"),
        table: nasty("t"),
        column: nasty("c"),
        publication: nasty("p"),
        role: nasty("r"),
        prefix: nasty("m"),
    };
    let config = names.config(&rig, "");
    db.batch(&format!("CREATE SCHEMA {}", ident(&names.schema)));
    let role = format!("--role={}", names.role);
    done(&output_with("init", &config, &[&role]));
    names.assert_there(&db);
    let checked = Checked::run(&config, &[]);
    checked.nothing_fails("postgres");

    let column = format!("--set=prune.column={}", toml(&names.time()));
    let relay = rig.start_with(&config, &["--set=prune.before_slot=true", &column]);
    relay.streaming();
    db.batch(&format!(
        "INSERT INTO {}.{} (aggregatetype, {}, type, payload, {}) \
         VALUES ('order', 'key', 'T', '{{\"number\": 1}}', now() - interval '2 days')",
        ident(&names.schema),
        ident(&names.table),
        ident(&names.column),
        ident(&names.time()),
    ));
    assert_eq!(rig.records(1).len(), 1);
    rig.caught_up();
    done(&output_with("status", &config, &[]));
    done(&output_with("bookmark create before", &config, &[]));
    done(&output_with("slots list", &config, &[]));
    let prune = ["--set=prune.before_slot=true", "--yes", &column];
    let pruned = done(&output_with("prune --keep=24h", &config, &prune));
    assert_has(&pruned, &["deleted 1 row"]);
    relay.ends_well();
    let plan = said(&output_with("cutover plan", &config, &[]));
    assert_lacks(&plan, &["42601", "syntax error", "42703", "42P01"]);
}
