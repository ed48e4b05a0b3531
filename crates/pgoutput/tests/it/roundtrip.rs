//! decode(encode(x)) is x, for every message there can be.

use proptest::collection::vec;
use proptest::prelude::*;
use walrelay_lsn::{CommitEnd, Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{
    Column, Message, OldTuple, PgTimestamp, ReplicaIdentity, Tuple, Value, decode, encode,
};

/// A message that owns its parts, independent of how the decoder keeps them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Owned {
    Begin {
        final_lsn: u64,
        time: i64,
        xid: u32,
    },
    Commit {
        commit_lsn: u64,
        end_lsn: u64,
        time: i64,
    },
    Origin {
        commit_lsn: u64,
        name: String,
    },
    Relation {
        id: u32,
        namespace: String,
        name: String,
        identity: char,
        columns: Vec<OwnedColumn>,
    },
    Type {
        oid: u32,
        namespace: String,
        name: String,
    },
    Insert {
        relation: u32,
        new: Row,
    },
    Update {
        relation: u32,
        old: Option<Old>,
        new: Row,
    },
    Delete {
        relation: u32,
        old: Old,
    },
    Truncate {
        cascade: bool,
        restart_identity: bool,
        relations: Vec<u32>,
    },
    Logical {
        transactional: bool,
        lsn: u64,
        prefix: String,
        content: Vec<u8>,
    },
}

type OwnedColumn = (String, bool, u32, i32);
type Row = Vec<OwnedValue>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OwnedValue {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Old {
    Key(Row),
    Full(Row),
}

fn name() -> impl Strategy<Value = String> {
    "[^\0]{0,12}"
}

/// Never the empty one, which the wire keeps for `pg_catalog`.
fn namespace() -> impl Strategy<Value = String> {
    prop_oneof![Just("pg_catalog".to_owned()), "[^\0]{1,12}"]
}

fn row() -> impl Strategy<Value = Row> {
    let bytes = || vec(any::<u8>(), 0..40);
    let value = prop_oneof![
        Just(OwnedValue::Null),
        Just(OwnedValue::Unchanged),
        bytes().prop_map(OwnedValue::Text),
        bytes().prop_map(OwnedValue::Binary),
    ];
    vec(value, 0..9)
}

fn old() -> impl Strategy<Value = Old> {
    prop_oneof![row().prop_map(Old::Key), row().prop_map(Old::Full)]
}

/// Any message.
pub(crate) fn message() -> impl Strategy<Value = Owned> {
    let column = (name(), any::<bool>(), any::<u32>(), any::<i32>());
    let identity = prop_oneof![Just('d'), Just('n'), Just('f'), Just('i')];
    prop_oneof![
        any::<(u64, i64, u32)>().prop_map(|(final_lsn, time, xid)| Owned::Begin {
            final_lsn,
            time,
            xid
        }),
        any::<(u64, u64, i64)>().prop_map(|(commit_lsn, end_lsn, time)| Owned::Commit {
            commit_lsn,
            end_lsn,
            time
        }),
        (any::<u64>(), name()).prop_map(|(commit_lsn, name)| Owned::Origin { commit_lsn, name }),
        (
            any::<u32>(),
            namespace(),
            name(),
            identity,
            vec(column, 0..9)
        )
            .prop_map(|(id, namespace, name, identity, columns)| Owned::Relation {
                id,
                namespace,
                name,
                identity,
                columns
            }),
        (any::<u32>(), namespace(), name()).prop_map(|(oid, namespace, name)| Owned::Type {
            oid,
            namespace,
            name
        }),
        (any::<u32>(), row()).prop_map(|(relation, new)| Owned::Insert { relation, new }),
        (any::<u32>(), proptest::option::of(old()), row())
            .prop_map(|(relation, old, new)| Owned::Update { relation, old, new }),
        (any::<u32>(), old()).prop_map(|(relation, old)| Owned::Delete { relation, old }),
        (any::<bool>(), any::<bool>(), vec(any::<u32>(), 0..9)).prop_map(
            |(cascade, restart_identity, relations)| Owned::Truncate {
                cascade,
                restart_identity,
                relations
            }
        ),
        (any::<bool>(), any::<u64>(), name(), vec(any::<u8>(), 0..60)).prop_map(
            |(transactional, lsn, prefix, content)| Owned::Logical {
                transactional,
                lsn,
                prefix,
                content
            }
        ),
    ]
}

/// Its bytes, through the functions that tests of other crates use.
pub(crate) fn encoded(message: &Owned) -> Vec<u8> {
    let time = PgTimestamp::new;
    let relation_id = RelationId::new;
    match message {
        Owned::Begin {
            final_lsn,
            time: at,
            xid,
        } => encode::begin(Lsn::new(*final_lsn), time(*at), Xid::new(*xid)),
        Owned::Commit {
            commit_lsn,
            end_lsn,
            time: at,
        } => encode::commit(Lsn::new(*commit_lsn), Lsn::new(*end_lsn), time(*at)),
        Owned::Origin { commit_lsn, name } => encode::origin(Lsn::new(*commit_lsn), name),
        Owned::Relation {
            id,
            namespace,
            name,
            identity,
            columns,
        } => {
            let identity = match identity {
                'd' => ReplicaIdentity::Default,
                'n' => ReplicaIdentity::Nothing,
                'f' => ReplicaIdentity::Full,
                _ => ReplicaIdentity::Index,
            };
            let columns = columns.iter().map(|(name, is_key, oid, modifier)| Column {
                name,
                is_key: *is_key,
                type_oid: TypeOid::new(*oid),
                type_modifier: *modifier,
            });
            encode::relation(relation_id(*id), namespace, name, identity, columns)
        }
        Owned::Type {
            oid,
            namespace,
            name,
        } => encode::type_name(TypeOid::new(*oid), namespace, name),
        Owned::Insert { relation, new } => encode::insert(relation_id(*relation), &borrowed(new)),
        Owned::Update { relation, old, new } => {
            let row;
            let old = match old {
                None => None,
                Some(Old::Key(old)) => {
                    row = borrowed(old);
                    Some(encode::OldRow::Key(&row))
                }
                Some(Old::Full(old)) => {
                    row = borrowed(old);
                    Some(encode::OldRow::Full(&row))
                }
            };
            encode::update(relation_id(*relation), old, &borrowed(new))
        }
        Owned::Delete { relation, old } => match old {
            Old::Key(row) => {
                encode::delete(relation_id(*relation), encode::OldRow::Key(&borrowed(row)))
            }
            Old::Full(row) => {
                encode::delete(relation_id(*relation), encode::OldRow::Full(&borrowed(row)))
            }
        },
        Owned::Truncate {
            cascade,
            restart_identity,
            relations,
        } => encode::truncate(
            *cascade,
            *restart_identity,
            relations.iter().copied().map(relation_id),
        ),
        Owned::Logical {
            transactional,
            lsn,
            prefix,
            content,
        } => encode::logical(*transactional, Lsn::new(*lsn), prefix, content),
    }
}

fn borrowed(row: &Row) -> Vec<Value<'_>> {
    row.iter()
        .map(|value| match value {
            OwnedValue::Null => Value::Null,
            OwnedValue::Unchanged => Value::UnchangedToast,
            OwnedValue::Text(bytes) => Value::Text(bytes),
            OwnedValue::Binary(bytes) => Value::Binary(bytes),
        })
        .collect()
}

fn owned(message: &Message<'_>) -> Owned {
    match message {
        Message::Begin(m) => Owned::Begin {
            final_lsn: m.final_lsn.get(),
            time: m.commit_time.get(),
            xid: m.xid.get(),
        },
        Message::Commit(m) => Owned::Commit {
            commit_lsn: m.commit_lsn.get(),
            end_lsn: CommitEnd::lsn(m.end).get(),
            time: m.commit_time.get(),
        },
        Message::Origin(m) => Owned::Origin {
            commit_lsn: m.commit_lsn.get(),
            name: m.name.to_owned(),
        },
        Message::Relation(m) => Owned::Relation {
            id: m.id.get(),
            namespace: m.namespace.to_owned(),
            name: m.name.to_owned(),
            identity: match m.replica_identity {
                ReplicaIdentity::Default => 'd',
                ReplicaIdentity::Nothing => 'n',
                ReplicaIdentity::Full => 'f',
                ReplicaIdentity::Index => 'i',
            },
            columns: m
                .columns()
                .map(|c| {
                    (
                        c.name.to_owned(),
                        c.is_key,
                        c.type_oid.get(),
                        c.type_modifier,
                    )
                })
                .collect(),
        },
        Message::Type(m) => Owned::Type {
            oid: m.oid.get(),
            namespace: m.namespace.to_owned(),
            name: m.name.to_owned(),
        },
        Message::Insert(m) => Owned::Insert {
            relation: m.relation.get(),
            new: owned_row(m.tuple),
        },
        Message::Update(m) => Owned::Update {
            relation: m.relation.get(),
            old: m.old.map(owned_old),
            new: owned_row(m.new),
        },
        Message::Delete(m) => Owned::Delete {
            relation: m.relation.get(),
            old: owned_old(m.old),
        },
        Message::Truncate(m) => Owned::Truncate {
            cascade: m.cascade,
            restart_identity: m.restart_identity,
            relations: m.relations().map(RelationId::get).collect(),
        },
        Message::Logical(m) => Owned::Logical {
            transactional: m.transactional,
            lsn: m.lsn.get(),
            prefix: m.prefix.to_owned(),
            content: m.content.to_vec(),
        },
    }
}

fn owned_old(old: OldTuple<'_>) -> Old {
    match old {
        OldTuple::Key(tuple) => Old::Key(owned_row(tuple)),
        OldTuple::Full(tuple) => Old::Full(owned_row(tuple)),
    }
}

fn owned_row(tuple: Tuple<'_>) -> Row {
    let mut left = tuple.len();
    let mut values = tuple.values();
    let mut row = Row::new();
    loop {
        assert_eq!(values.len(), left);
        row.push(match values.next() {
            None => break,
            Some(Value::Null) => OwnedValue::Null,
            Some(Value::UnchangedToast) => OwnedValue::Unchanged,
            Some(Value::Text(bytes)) => OwnedValue::Text(bytes.to_vec()),
            Some(Value::Binary(bytes)) => OwnedValue::Binary(bytes.to_vec()),
        });
        left -= 1;
    }
    row
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_encoded_is_decoded(message in message()) {
        let body = encoded(&message);
        let decoded = decode(&body).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(owned(&decoded), message);
        prop_assert_eq!(encode::message(&decoded), body);
    }

    #[test]
    fn debug_of_rows_shows_no_value(relation in any::<u32>(), secret in "[!-~]{24}") {
        let row = [Value::Text(secret.as_bytes()), Value::Binary(secret.as_bytes())];
        let old = encode::OldRow::Full(&row);
        let bodies = [
            encode::insert(RelationId::new(relation), &row),
            encode::update(RelationId::new(relation), Some(old), &row),
            encode::delete(RelationId::new(relation), old),
            encode::logical(true, Lsn::new(1), "prefix", secret.as_bytes()),
        ];
        for body in bodies {
            let decoded = decode(&body).unwrap();
            let shown = format!("{decoded:?} {decoded:#?}");
            prop_assert!(!shown.contains(&secret), "{}", shown);
            prop_assert!(shown.contains("24"), "{}", shown);
            prop_assert!(!shown.contains(&format!("{:?}", secret.as_bytes())), "{}", shown);
        }
    }
}

#[test]
fn a_table_writes_its_relation_and_its_rows() {
    let table = encode::Table::new(RelationId::new(16400), "public", "outbox")
        .replica_identity(ReplicaIdentity::Full)
        .key("id", TypeOid::new(2950))
        .column("payload", TypeOid::new(3802));
    let body = table.relation();
    let Message::Relation(relation) = decode(&body).unwrap() else {
        panic!()
    };
    assert_eq!(relation.id, table.id());
    assert_eq!((relation.namespace, relation.name), ("public", "outbox"));
    assert_eq!(relation.replica_identity, ReplicaIdentity::Full);
    let columns: Vec<_> = relation
        .columns()
        .map(|c| (c.name, c.is_key, c.type_oid.get(), c.type_modifier))
        .collect();
    assert_eq!(
        columns,
        [("id", true, 2950, -1), ("payload", false, 3802, -1)]
    );

    let body = table.insert(&[Some("7"), None]);
    let Message::Insert(insert) = decode(&body).unwrap() else {
        panic!()
    };
    assert_eq!(insert.relation, table.id());
    assert_eq!(
        insert.tuple.values().collect::<Vec<_>>(),
        [Value::Text(b"7"), Value::Null]
    );
}

#[test]
#[should_panic(expected = "one value for each column")]
fn a_table_refuses_a_row_that_is_too_short() {
    encode::Table::new(RelationId::new(1), "public", "outbox")
        .key("id", TypeOid::new(20))
        .insert(&[]);
}
