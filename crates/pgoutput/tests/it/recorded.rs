//! Decodes bytes recorded from real servers; see `tests/recorded/README.md`.

use std::fmt::Write as _;
use std::path::Path;

use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::Value::{Binary, Null, Text, UnchangedToast};
use walrelay_pgoutput::{
    Column, Message, OldRow, PgTimestamp, ReplicaIdentity, Tuple, Value, decode, encode,
};

const VERSIONS: [&str; 2] = ["postgres-15.txt", "postgres-18.txt"];

/// Reads the lines of a recording: the format ("text" or "binary") and a body.
fn recording(file: &str) -> Vec<(String, Vec<u8>)> {
    read(file)
        .lines()
        .map(|line| {
            let (format, hex) = line.split_once(' ').expect("two words");
            (format.to_owned(), unhex(hex))
        })
        .collect()
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/recorded")
        .join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn unhex(hex: &str) -> Vec<u8> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty(), "{hex}");
    pairs
        .iter()
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn every_version_sends_what_was_done_to_the_tables() {
    let expected = read("expected.txt");
    for file in VERSIONS {
        let mut names = Vec::new();
        let mut described = String::new();
        for (format, body) in recording(file) {
            let message = decode(&body).unwrap_or_else(|error| panic!("{file}: {error}"));
            writeln!(described, "{format} {}", describe(&message, &mut names)).unwrap();
        }
        for (number, (described, expected)) in described.lines().zip(expected.lines()).enumerate() {
            assert_eq!(described, expected, "{file}, line {}", number + 1);
        }
        assert_eq!(
            described.lines().count(),
            expected.lines().count(),
            "{file}"
        );
    }
}

/// Writes a message as text, without the numbers that differ between servers.
fn describe(message: &Message<'_>, names: &mut Vec<(RelationId, String)>) -> String {
    let name = |id: RelationId| {
        let known = names.iter().find(|(known, _)| *known == id);
        known.map_or_else(|| panic!("no Relation for {id}"), |(_, name)| name.clone())
    };
    match message {
        Message::Begin(_) => "Begin".into(),
        Message::Commit(commit) => {
            assert!(commit.end.lsn() > commit.commit_lsn);
            "Commit".into()
        }
        Message::Origin(origin) => format!("Origin {:?} at {}", origin.name, origin.commit_lsn),
        Message::Type(named) => format!("Type {}.{}", named.namespace, named.name),
        Message::Relation(relation) => {
            let name = format!("{}.{}", relation.namespace, relation.name);
            names.push((relation.id, name.clone()));
            let mut described = format!("Relation {name} {:?}", relation.replica_identity);
            for column in relation.columns() {
                let key = if column.is_key { "*" } else { "" };
                write!(described, ", {}{key}", column.name).unwrap();
                match column.type_oid.get() {
                    16384.. => described.push_str(" own type"),
                    oid => write!(described, " {oid}").unwrap(),
                }
                if column.type_modifier != -1 {
                    write!(described, "({})", column.type_modifier).unwrap();
                }
            }
            described
        }
        Message::Insert(insert) => {
            format!(
                "Insert {} {}",
                name(insert.relation),
                describe_tuple(insert.tuple)
            )
        }
        Message::Update(update) => {
            let old = update
                .old
                .map(|old| describe_old(old) + " ")
                .unwrap_or_default();
            format!(
                "Update {} {old}to {}",
                name(update.relation),
                describe_tuple(update.new)
            )
        }
        Message::Delete(delete) => {
            format!(
                "Delete {} {}",
                name(delete.relation),
                describe_old(delete.old)
            )
        }
        Message::Truncate(truncate) => {
            let tables: Vec<String> = truncate.relations().map(name).collect();
            let cascade = if truncate.cascade { " cascade" } else { "" };
            let restart = if truncate.restart_identity {
                " restart identity"
            } else {
                ""
            };
            format!("Truncate {}{cascade}{restart}", tables.join(", "))
        }
        Message::Logical(logical) => {
            assert!(!logical.lsn.is_zero());
            let kind = if logical.transactional {
                "transactional"
            } else {
                "standalone"
            };
            format!(
                "Message {kind} {:?} {}",
                logical.prefix,
                show(logical.content)
            )
        }
    }
}

fn describe_old(old: OldRow<Tuple<'_>>) -> String {
    match old {
        OldRow::Key(tuple) => format!("key {}", describe_tuple(tuple)),
        OldRow::Full(tuple) => format!("full {}", describe_tuple(tuple)),
    }
}

fn describe_tuple(tuple: Tuple<'_>) -> String {
    let values: Vec<String> = tuple
        .values()
        .map(|value| match value {
            Null => "NULL".into(),
            UnchangedToast => "unchanged".into(),
            Text(bytes) => show(bytes),
            Binary(bytes) => format!("b{}", show(bytes)),
        })
        .collect();
    format!("({})", values.join(", "))
}

fn show(bytes: &[u8]) -> String {
    if bytes.len() > 100 && bytes.iter().all(|byte| *byte == b'x') {
        return format!("'x' × {}", bytes.len());
    }
    format!("'{}'", bytes.escape_ascii())
}

#[test]
fn what_servers_send_is_encoded_byte_for_byte() {
    for file in VERSIONS {
        for (_, body) in recording(file) {
            let message = decode(&body).unwrap();
            assert_eq!(encode::message(&message), body, "{file}: {message:?}");
        }
    }
}

#[test]
fn recordings_hold_every_kind_of_message() {
    use walrelay_pgoutput::MessageKind;
    for file in VERSIONS {
        let bodies = recording(file);
        for kind in MessageKind::ALL {
            let found = bodies
                .iter()
                .any(|(_, body)| decode(body).unwrap().kind() == *kind);
            assert!(found, "{kind} in {file}");
        }
    }
}

/// Decodes a body in hexadecimal, which must be a message of this kind.
macro_rules! decoded {
    ($message:ident: $kind:ident = $hex:literal) => {
        let body = unhex($hex);
        let Message::$kind($message) = decode(&body).unwrap() else {
            panic!()
        };
    };
}

fn values(tuple: Tuple<'_>) -> Vec<Value<'_>> {
    tuple.values().collect()
}

// One message of each kind, byte by byte, as Postgres 15 sent it.

#[test]
fn begin() {
    decoded!(begin: Begin = "420000000001546b30000303cc9e229b1d000002e4");
    assert_eq!(begin.final_lsn, Lsn::new(0x0154_6B30));
    assert_eq!(begin.commit_time, PgTimestamp::new(0x0003_03CC_9E22_9B1D));
    assert_eq!(begin.xid, Xid::new(740));
}

#[test]
fn commit() {
    decoded!(commit: Commit = "43000000000001546b300000000001546b60000303cc9e229b1d");
    assert_eq!(commit.commit_lsn, Lsn::new(0x0154_6B30));
    assert_eq!(
        commit.end,
        CommitEnd::from_commit_message(Lsn::new(0x0154_6B60))
    );
    assert_eq!(commit.commit_time, PgTimestamp::new(0x0003_03CC_9E22_9B1D));
}

#[test]
fn origin() {
    decoded!(origin: Origin = "4f00000016b374d848656c7365776865726500");
    assert_eq!(origin.commit_lsn, "16/B374D848".parse().unwrap());
    assert_eq!(origin.name, "elsewhere");
}

#[test]
fn relation() {
    decoded!(relation: Relation =
        "520000401e7075626c696300696e64657865640069000301610000000017ffffffff00620000000019ffffffff\
         005a6fc3ab20e298830000000011ffffffff");
    assert_eq!(relation.id, RelationId::new(0x401E));
    assert_eq!((relation.namespace, relation.name), ("public", "indexed"));
    assert_eq!(relation.replica_identity, ReplicaIdentity::Index);
    let column = |name, is_key, oid| Column {
        name,
        is_key,
        type_oid: TypeOid::new(oid),
        type_modifier: -1,
    };
    assert_eq!(relation.columns().len(), 3);
    assert_eq!(
        relation.columns().collect::<Vec<_>>(),
        [
            column("a", true, 23),
            column("b", false, 25),
            column("Zoë ☃", false, 17)
        ]
    );
}

#[test]
fn relation_in_pg_catalog_comes_with_an_empty_namespace() {
    decoded!(relation: Relation =
        "520000402a0077616c72656c61795f636174616c6f67006e000100610000000017ffffffff");
    assert_eq!(
        (relation.namespace, relation.name),
        ("pg_catalog", "walrelay_catalog")
    );
    assert_eq!(relation.replica_identity, ReplicaIdentity::Nothing);
}

#[test]
fn type_name() {
    decoded!(named: Type = "59000040017075626c6963006d6f6f6400");
    assert_eq!(named.oid, TypeOid::new(0x4001));
    assert_eq!((named.namespace, named.name), ("public", "mood"));

    decoded!(named: Type = "59000040060077616c72656c61795f6d6f6f6400");
    assert_eq!(
        (named.namespace, named.name),
        ("pg_catalog", "walrelay_mood")
    );
}

#[test]
fn insert() {
    decoded!(insert: Insert = "490000401e4e0003740000000131740000000074000000065c7830306666");
    assert_eq!(insert.relation, RelationId::new(0x401E));
    assert_eq!(insert.tuple.len(), 3);
    assert_eq!(
        values(insert.tuple),
        [Text(b"1"), Text(b""), Text(b"\\x00ff")]
    );

    decoded!(insert: Insert = "490000401e4e00036200000004000000016200000000620000000200ff");
    assert_eq!(
        values(insert.tuple),
        [Binary(&[0, 0, 0, 1]), Binary(b""), Binary(&[0, 0xFF])]
    );
}

#[test]
fn insert_into_a_table_without_columns() {
    decoded!(insert: Insert = "49000040274e0000");
    assert!(insert.tuple.is_empty());
    assert_eq!(insert.tuple.values().next(), None);
}

#[test]
fn update_that_leaves_a_toasted_value_alone() {
    decoded!(update: Update =
        "55000040124e0005740000000131740000000463616c6d740000000563726f737374000000013275");
    assert_eq!(update.relation, RelationId::new(0x4012));
    assert_eq!(update.old, None);
    assert_eq!(
        values(update.new),
        [
            Text(b"1"),
            Text(b"calm"),
            Text(b"cross"),
            Text(b"2"),
            UnchangedToast
        ]
    );
}

#[test]
fn update_with_the_old_row() {
    decoded!(update: Update =
        "55000040194f000274000000013174000000036f6e654e00027400000001317400000003756e6f");
    let Some(OldRow::Full(old)) = update.old else {
        panic!()
    };
    assert_eq!(values(old), [Text(b"1"), Text(b"one")]);
    assert_eq!(values(update.new), [Text(b"1"), Text(b"uno")]);
}

#[test]
fn delete_with_the_key() {
    decoded!(delete: Delete = "440000401e4b00037400000001326e6e");
    assert_eq!(delete.relation, RelationId::new(0x401E));
    let OldRow::Key(key) = delete.old else {
        panic!()
    };
    assert_eq!(values(key), [Text(b"2"), Null, Null]);
}

#[test]
fn truncate() {
    decoded!(truncate: Truncate = "540000000203000040190000401e");
    assert!(truncate.cascade && truncate.restart_identity);
    let relations: Vec<_> = truncate.relations().collect();
    assert_eq!(
        relations,
        [RelationId::new(0x4019), RelationId::new(0x401E)]
    );

    decoded!(truncate: Truncate = "5400000001010000400b");
    assert!(truncate.cascade && !truncate.restart_identity);
    decoded!(truncate: Truncate = "5400000001020000400b");
    assert!(!truncate.cascade && truncate.restart_identity);
}

#[test]
fn logical_message() {
    decoded!(logical: Logical =
        "4d01000000000154a05877616c72656c61790000000010696e2061207472616e73616374696f6e");
    assert!(logical.transactional);
    assert_eq!(logical.lsn, Lsn::new(0x0154_A058));
    assert_eq!(logical.prefix, "walrelay");
    assert_eq!(logical.content, b"in a transaction");
}
