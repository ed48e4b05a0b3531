//! Property test: a message is decoded and encodes to the same bytes again.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use walrelay_lsn::{Lsn, RelationId, TypeOid, Xid};
use walrelay_pgoutput::{
    Column, Message, OldRow, PgTimestamp, ReplicaIdentity, Value, decode, encode, fuzzing,
};

fn name() -> impl Strategy<Value = String> {
    "[^\0]{0,12}"
}

/// Generates any namespace but the empty one, which means `pg_catalog` on the wire.
fn namespace() -> impl Strategy<Value = String> {
    prop_oneof![Just("pg_catalog".to_owned()), "[^\0]{1,12}"]
}

/// The tag and the bytes of each value. A message has no bytes for the tags `n` and `u`.
type Row = Vec<(u8, Vec<u8>)>;

fn row() -> impl Strategy<Value = Row> {
    vec((select(&b"nutb"[..]), vec(any::<u8>(), 0..40)), 0..9)
}

fn values(row: &[(u8, Vec<u8>)]) -> Vec<Value<'_>> {
    row.iter()
        .map(|(tag, bytes)| match tag {
            b'n' => Value::Null,
            b'u' => Value::UnchangedToast,
            b't' => Value::Text(bytes),
            _ => Value::Binary(bytes),
        })
        .collect()
}

fn relation() -> impl Strategy<Value = Vec<u8>> {
    let oid = any::<u32>().prop_map(TypeOid::new);
    let column = (name(), any::<bool>(), oid, any::<i32>());
    let identity = select(vec![
        ReplicaIdentity::Default,
        ReplicaIdentity::Nothing,
        ReplicaIdentity::Full,
        ReplicaIdentity::Index,
    ]);
    let id = any::<u32>().prop_map(RelationId::new);
    let parts = (id, namespace(), name(), identity, vec(column, 0..9));
    parts.prop_map(|(id, namespace, name, identity, columns)| {
        let columns = columns
            .iter()
            .map(|(name, is_key, type_oid, modifier)| Column {
                name,
                is_key: *is_key,
                type_oid: *type_oid,
                type_modifier: *modifier,
            });
        encode::relation(id, &namespace, &name, identity, columns)
    })
}

/// Generates the bytes of any message, by the functions that tests of other crates use.
pub(crate) fn message() -> impl Strategy<Value = Vec<u8>> {
    let id = || any::<u32>().prop_map(RelationId::new);
    let lsn = || any::<u64>().prop_map(Lsn::new);
    let time = || any::<i64>().prop_map(PgTimestamp::new);
    let oid = any::<u32>().prop_map(TypeOid::new);
    let xid = any::<u32>().prop_map(Xid::new);
    let flag = any::<bool>;
    let old = || select(vec![OldRow::Key(()), OldRow::Full(())]);
    let content = vec(any::<u8>(), 0..60);
    prop_oneof![
        (lsn(), time(), xid).prop_map(|(end, at, xid)| encode::begin(end, at, xid)),
        (lsn(), lsn(), time()).prop_map(|(commit, end, at)| encode::commit(commit, end, at)),
        (lsn(), name()).prop_map(|(commit, name)| encode::origin(commit, &name)),
        relation(),
        (oid, namespace(), name())
            .prop_map(|(oid, schema, name)| encode::type_name(oid, &schema, &name)),
        (id(), row()).prop_map(|(id, new)| encode::insert(id, &values(&new))),
        (id(), proptest::option::of(old()), row(), row()).prop_map(|(id, kind, old, new)| {
            let old = values(&old);
            let old = kind.map(|kind| kind.map(|()| &old[..]));
            encode::update(id, old, &values(&new))
        }),
        (id(), old(), row()).prop_map(|(id, kind, old)| {
            let old = values(&old);
            encode::delete(id, kind.map(|()| &old[..]))
        }),
        (flag(), flag(), vec(id(), 0..9)).prop_map(|(cascade, restart, ids)| {
            encode::truncate(cascade, restart, ids.into_iter())
        }),
        (flag(), lsn(), name(), content).prop_map(|(transactional, at, prefix, content)| {
            encode::logical(transactional, at, &prefix, &content)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_encoded_is_decoded(body in message()) {
        fuzzing::decodes_without_panic(&body);
        let decoded = decode(&body).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(encode::message(&decoded), body);
    }

    #[test]
    fn debug_of_rows_shows_no_value(relation in any::<u32>(), secret in "[!-~]{24}") {
        let row = [Value::Text(secret.as_bytes()), Value::Binary(secret.as_bytes())];
        let old = OldRow::Full(&row[..]);
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
