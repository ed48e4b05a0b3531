use super::*;

/// Returns rows 1 to `n` of key `k` in topic `t`, with their numbers as ids.
fn rows(n: i64) -> Vec<Committed> {
    (1..=n).map(|number| row("t", "k", number)).collect()
}

fn row(topic: &str, key: &str, number: i64) -> Committed {
    Committed {
        id: if (topic, key) == ("t", "k") {
            number.to_string()
        } else {
            format!("{key}{number}")
        },
        topic: topic.into(),
        key: Some(key.into()),
        number,
        payload: Some(format!("value {key} {number}").into()),
    }
}

/// Returns records of the rows with these ids, in this order, in partition 0.
fn records<'a>(rows: &[Committed], ids: impl IntoIterator<Item = &'a str>) -> Vec<Delivered> {
    ids.into_iter()
        .zip(0..)
        .map(|(id, offset)| {
            let row = rows.iter().find(|row| row.id == id).unwrap();
            Delivered {
                id: Some(row.id.clone()),
                topic: row.topic.clone(),
                offset,
                key: row.key.clone(),
                payload: row.payload.clone(),
                ..Delivered::default()
            }
        })
        .collect()
}

/// Returns the verdict on rows 1 to `n` of one key that were delivered in the order of `ids`.
fn verdict(n: i64, ids: &str) -> Verdict {
    check(&rows(n), &records(&rows(n), ids.split_whitespace()))
}

fn numbers(list: &[OutOfOrder]) -> Vec<(i64, i64)> {
    list.iter()
        .map(|offence| (offence.number, offence.after))
        .collect()
}

#[test]
fn what_came_once_and_in_order_is_clean() {
    let verdict = verdict(3, "1 2 3");
    verdict.assert_clean();
    assert_eq!(
        (verdict.committed, verdict.delivered, verdict.duplicates),
        (3, 3, 0)
    );
    check(&[], &[]).assert_clean();
}

#[test]
fn repetitions_from_an_earlier_point_are_clean() {
    for (ids, duplicates) in [
        ("1 2 3 1 2 3", 3),
        ("1 2 1 2 3", 2),
        ("1 1 2 2 3 3", 3),
        ("1 2 3 2 3", 2),
        ("1 2 1 1 2 3", 3),
    ] {
        let verdict = verdict(3, ids);
        verdict.assert_clean();
        assert_eq!(verdict.duplicates, duplicates, "{ids}");
    }
}

#[test]
fn a_missing_row_is_lost_and_nothing_else() {
    let verdict = verdict(4, "1 2 4");
    assert_eq!(verdict.lost, ["3"]);
    assert!(
        verdict.reordered.is_empty() && verdict.ragged.is_empty(),
        "{verdict}"
    );
    assert!(!verdict.is_clean_but_for_ragged());
    assert_eq!(check(&rows(2), &[]).lost, ["1", "2"]);
}

#[test]
fn a_record_without_a_row_is_a_phantom() {
    let all = rows(3);
    let records = records(&all, ["1", "2", "3"]);
    let verdict = check(&all[..2], &records);
    assert_eq!(verdict.phantom, ["3 at t[0]@2"]);
    assert!(!verdict.is_clean_but_for_ragged());
}

#[test]
fn a_record_without_an_id_is_a_phantom_and_its_row_is_lost() {
    let all = rows(2);
    let mut records = records(&all, ["1", "2"]);
    records[1].id = None;
    let verdict = check(&all, &records);
    assert_eq!(verdict.phantom, ["no id at t[0]@1"]);
    assert_eq!(verdict.lost, ["2"]);
}

#[test]
fn first_deliveries_out_of_order_are_reordered() {
    for (ids, expected) in [
        ("1 3 2", vec![(2, 3)]),
        ("2 1 3", vec![(1, 2)]),
        ("3 2 1", vec![(2, 3), (1, 2)]),
        ("2 3 1", vec![(1, 3)]),
        ("1 3 2 3", vec![(2, 3)]), // the repetition does not make it correct
        ("1 3 1 2 3", vec![(2, 1)]),
    ] {
        let verdict = verdict(3, ids);
        assert_eq!(numbers(&verdict.reordered), expected, "{ids}");
        assert!(!verdict.is_clean_but_for_ragged(), "{ids}");
    }
}

#[test]
fn repetitions_that_permute_or_leave_out_are_ragged() {
    for (ids, expected) in [
        ("1 2 3 1 3", vec![(3, 1)]),     // leaves 2 out
        ("1 2 3 1 3 2 3", vec![(3, 1)]), // another order
        ("1 2 1 3", vec![(3, 1)]),       // continues where it should repeat 2
        ("1 2 3 2", vec![(2, 3)]),       // does not end with the latest
        ("1 2 3 1", vec![(1, 3)]),
    ] {
        let verdict = verdict(3, ids);
        assert_eq!(numbers(&verdict.ragged), expected, "{ids}");
        assert!(verdict.reordered.is_empty(), "{ids}");
        assert!(
            !verdict.is_clean() && verdict.is_clean_but_for_ragged(),
            "{ids}"
        );
    }
}

#[test]
fn keys_are_judged_apart() {
    let mut all = rows(2);
    all.extend([row("t", "other", 1), row("t", "other", 2), row("u", "k", 1)]);
    // Ids of keys other than t/k are key and number.
    let verdict = check(&all, &records(&all, ["other1", "1", "k1", "other2", "2"]));
    verdict.assert_clean();
    let verdict = check(&all, &records(&all, ["other2", "1", "k1", "other1", "2"]));
    assert_eq!(verdict.reordered.len(), 1, "{verdict}");
    assert_eq!(verdict.reordered[0].id, "other1");
}

#[test]
fn offsets_count_and_not_the_order_of_the_list() {
    let all = rows(3);
    let mut records = records(&all, ["1", "2", "3"]);
    records.reverse();
    check(&all, &records).assert_clean();
}

#[test]
fn a_key_in_two_partitions_is_split() {
    let all = rows(2);
    let mut records = records(&all, ["1", "2"]);
    records[1].partition = 1;
    let verdict = check(&all, &records);
    assert_eq!(verdict.split, ["t/k"]);
    assert!(!verdict.is_clean_but_for_ragged());
}

type Change = fn(&mut Delivered);

#[test]
fn every_byte_of_topic_key_and_value_counts() {
    let all = rows(1);
    let changes: [(&str, Change); 6] = [
        ("topic", |record| record.topic.push('x')),
        ("key", |record| record.key = Some(b"K".to_vec())),
        ("key", |record| record.key = None),
        ("value", |record| {
            record.payload.as_mut().unwrap().push(b' ');
        }),
        ("value", |record| record.payload = None),
        ("value", |record| record.payload = Some(Vec::new())),
    ];
    for (what, change) in changes {
        let mut records = records(&all, ["1"]);
        change(&mut records[0]);
        let verdict = check(&all, &records);
        assert_eq!(verdict.altered.len(), 1, "{verdict}");
        assert_eq!(verdict.altered[0].what, what);
        assert!(!verdict.is_clean_but_for_ragged());
    }
}

#[test]
fn an_altered_duplicate_is_altered() {
    let all = rows(1);
    let mut records = records(&all, ["1", "1"]);
    records[1].payload = Some(b"other".to_vec());
    let verdict = check(&all, &records);
    assert_eq!((verdict.duplicates, verdict.altered.len()), (1, 1));
}

#[test]
fn without_a_key_no_order_is_asked_for() {
    let mut all = rows(3);
    for row in &mut all {
        row.key = None;
    }
    let mut records = records(&all, ["3", "1", "2"]);
    records[1].partition = 1;
    check(&all, &records).assert_clean();
}

#[test]
#[should_panic(expected = "number 1 twice")]
fn rows_that_prove_nothing_are_refused() {
    let mut all = rows(1);
    all.push(Committed {
        id: "again".into(),
        ..all[0].clone()
    });
    check(&all, &[]);
}

#[test]
fn the_report_counts_and_shows_the_first_few() {
    let verdict = verdict(12, "1 3 2");
    let words = verdict.to_string();
    assert!(
        words.contains("12 rows committed, 3 records read, 0 of them duplicates"),
        "{words}"
    );
    assert!(words.contains("lost: 9\n    4\n"), "{words}");
    assert!(words.contains("and 4 more"), "{words}");
    assert!(
        words.contains("first delivered out of order: 1\n    number 2 after 3: 2 at"),
        "{words}"
    );
    let caught = std::panic::catch_unwind(|| verdict.assert_clean()).unwrap_err();
    let message = caught.downcast_ref::<String>().unwrap();
    assert!(message.contains("the history is not clean"), "{message}");
}
