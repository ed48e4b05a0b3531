//! One row of a table for each way by which rows come to differ from the account, or not.

use walrelay_relay::{BucketSum, RowSum};

use super::*;

/// A bucket that has the rows of all cases.
const NUMBER: i64 = 7;

/// Rows by one slot. Each number is a row: its key, its event id and its age.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Accounted as sent.
    sent: &'static [i64],
    /// Accounted as dead letters.
    diverted: &'static [i64],
    /// In the table, and not among the dead letters that the store has.
    table: &'static [i64],
    /// In the table, and among these dead letters.
    dead: &'static [i64],
    /// Its relay has settled its dead letters.
    settled: bool,
}

/// The decision that a case expects.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Sent,
    /// All count as sent, and dead letters of so many slots are resolved.
    Settled(usize),
    /// So many rows have an open dead letter. The others may go.
    Open(u64),
    /// So many rows have an open dead letter, and the others stay, too.
    OpenAndAllStay(u64),
    /// So many rows are dead letters that other slots have not settled.
    Unsettled(i64),
    /// As [`Unsettled`], and the own dead letters are marked as settled.
    MarkAndUnsettled(i64),
    /// So many rows are in the table, and accounted.
    Stays(i64, i64),
    /// Nothing but so many dead letters is missing.
    Lost(i64),
    /// So many dead letters are missing, and so many rows are in the table, and accounted.
    LostAnd(i64, i64, i64),
}

use Expected::{
    Lost, LostAnd, MarkAndUnsettled, Open, OpenAndAllStay, Sent, Settled, Stays, Unsettled,
};

fn sum(rows: &[i64]) -> RowSum {
    let mut sum = RowSum::default();
    for row in rows {
        // Any hash of a row that is no linear function of its number.
        sum.rows += 1;
        sum.high += i128::from(row.wrapping_mul(*row).wrapping_mul(0x5851_F42D_4C95_7F2D));
        sum.low += i128::from(row.wrapping_pow(3).wrapping_mul(0x1405_7B7E_F767_814F));
    }
    sum
}

fn bucket(number: i64, slots: &[Slot], open: u64) -> BucketRows {
    let slots = slots.iter().map(|slot| SlotRows {
        present: BucketSum {
            sent: sum(slot.table),
            diverted: sum(slot.dead),
        },
        accounted: BucketSum {
            sent: sum(slot.sent),
            diverted: sum(slot.diverted),
        },
        is_settled: slot.settled,
    });
    BucketRows {
        number,
        slots: slots.collect(),
        open,
    }
}

/// Returns a slot that has accounted `sent`, of a table that has the rows `table`.
const fn slot(sent: &'static [i64], table: &'static [i64]) -> Slot {
    Slot {
        sent,
        diverted: &[],
        table,
        dead: &[],
        settled: false,
    }
}

/// Returns a slot of which rows became dead letters, besides row 1, which was sent.
const fn dead(diverted: &'static [i64], table: &'static [i64], dead: &'static [i64]) -> Slot {
    Slot {
        sent: &[1],
        diverted,
        table,
        dead,
        settled: false,
    }
}

/// Returns a slot that has settled the dead letters of these rows, besides row 1, which was sent.
const fn settled(diverted: &'static [i64], table: &'static [i64], known: &'static [i64]) -> Slot {
    let settled = true;
    let slot = dead(diverted, table, known);
    Slot { settled, ..slot }
}

const MORE: Slot = slot(&[1], &[1, 2, 3]);
const NONE: Slot = slot(&[], &[1, 2, 3]);

/// Name, slots, open dead letters, decision.
const CASES: &[(&str, &[Slot], u64, Expected)] = &[
    (
        "every row was acknowledged",
        &[slot(&[1, 2], &[1, 2])],
        0,
        Sent,
    ),
    (
        "the server sent a row twice, and it was counted once",
        &[slot(&[1], &[1])],
        0,
        Sent,
    ),
    (
        "a row was counted twice",
        &[slot(&[1, 1], &[1])],
        0,
        Stays(1, 2),
    ),
    (
        "an acknowledged row was not counted",
        &[slot(&[1], &[1, 2])],
        0,
        Stays(2, 1),
    ),
    // Rows that the slot did not carry.
    (
        "1: a first start was killed amid its snapshot, and something else made the slot",
        &[NONE],
        0,
        Stays(3, 0),
    ),
    (
        "2: the publication was gone for a while",
        &[MORE],
        0,
        Stays(3, 1),
    ),
    (
        "2: the slot was dropped and made again by init",
        &[MORE],
        0,
        Stays(3, 1),
    ),
    (
        "3: rows fit the row filter only since an UPDATE",
        &[MORE],
        0,
        Stays(3, 1),
    ),
    (
        "3: rows that the filter of now leaves out are not compared",
        &[slot(&[1], &[1])],
        0,
        Sent,
    ),
    ("4: snapshot_where left rows out", &[MORE], 0, Stays(3, 1)),
    (
        "5: --accept-gap was killed before the gap was recorded",
        &[MORE],
        0,
        Stays(3, 1),
    ),
    (
        "6: a partition was filled before it was attached",
        &[NONE],
        0,
        Stays(3, 0),
    ),
    (
        "7: the table joined the publication later",
        &[MORE],
        0,
        Stays(3, 1),
    ),
    ("8: rows are from before the slot", &[MORE], 0, Stays(3, 1)),
    (
        "8: rows are from before the slot, and the user says that they may go",
        &[slot(&[1, 2, 3], &[1, 2, 3])],
        0,
        Sent,
    ),
    (
        "9: another relay's slot has not carried all rows",
        &[slot(&[1, 2, 3], &[1, 2, 3]), MORE],
        0,
        Stays(3, 3),
    ),
    (
        "9: another relay's publication leaves rows out",
        &[slot(&[1, 2], &[1, 2]), slot(&[1], &[1])],
        0,
        Sent,
    ),
    (
        "9: another relay has a dead letter, which it has not settled",
        &[slot(&[1, 2], &[1, 2]), dead(&[2], &[1, 2], &[])],
        0,
        Unsettled(1),
    ),
    (
        "10: the store of dead letters was renamed or removed",
        &[dead(&[2, 3], &[1, 2, 3], &[])],
        0,
        Lost(2),
    ),
    (
        "10: the store of dead letters was trimmed",
        &[dead(&[2, 3], &[1, 3], &[2])],
        1,
        Lost(1),
    ),
    (
        "10: the store was renamed, and the slot passed over a row",
        &[dead(&[2], &[1, 2, 3], &[])],
        0,
        LostAnd(1, 3, 2),
    ),
    (
        "10: the store was renamed, and another relay has not sent a row",
        &[dead(&[2], &[1, 2], &[]), slot(&[1], &[1, 2])],
        0,
        LostAnd(1, 2, 2),
    ),
    (
        "10: the store has a dead letter of another row",
        &[dead(&[2], &[1, 2], &[3])],
        1,
        Stays(3, 2),
    ),
    (
        "11: the account was forgotten, and the slot stayed",
        &[NONE],
        0,
        Stays(3, 0),
    ),
    (
        "12: pass_over left rows out for a while",
        &[MORE],
        0,
        Stays(3, 1),
    ),
    (
        "13: rows were written while the table was unlogged, or in another schema",
        &[MORE],
        0,
        Stays(3, 1),
    ),
    (
        "14: a row was written again under its key, with a new time",
        &[slot(&[1, 2], &[1, 3])],
        0,
        Stays(2, 2),
    ),
    (
        "16: the slot was moved by SQL, or made by something else after a promotion",
        &[MORE],
        0,
        Stays(3, 1),
    ),
    (
        "17: the slot existed, so that the snapshot was skipped",
        &[NONE],
        0,
        Stays(3, 0),
    ),
    // Rows that others changed.
    (
        "the service deleted a row",
        &[slot(&[1, 2], &[1])],
        0,
        Stays(1, 2),
    ),
    (
        "the service deleted a row, and inserted another one",
        &[slot(&[1, 2], &[1, 3])],
        0,
        Stays(2, 2),
    ),
    (
        "the service changed the time of a row, which came from other ten minutes",
        &[slot(&[], &[1])],
        0,
        Stays(1, 0),
    ),
    (
        "the service changed as many rows as it deleted, so that two sums agree",
        &[slot(&[1, 4], &[2, 3])],
        0,
        Stays(2, 2),
    ),
    // Dead letters.
    (
        "rows have open dead letters",
        &[dead(&[2, 3], &[1], &[2, 3])],
        2,
        Open(2),
    ),
    (
        "one dead letter is open, another one resolved",
        &[dead(&[2, 3], &[1], &[2, 3])],
        1,
        Open(1),
    ),
    (
        "all dead letters are resolved",
        &[dead(&[2, 3], &[1], &[2, 3])],
        0,
        Settled(1),
    ),
    (
        "a dead letter was written, and its row sent by a later attempt",
        &[dead(&[2], &[], &[1, 2])],
        2,
        Stays(2, 2),
    ),
    // Two relays, whose destinations both refuse rows.
    (
        "the own dead letters are resolved, and another relay has not settled its own",
        &[dead(&[2], &[1], &[2]), dead(&[2], &[1, 2], &[])],
        0,
        MarkAndUnsettled(1),
    ),
    (
        "the same, of other rows",
        &[
            Slot {
                sent: &[1, 3],
                ..dead(&[2], &[1, 3], &[2])
            },
            dead(&[2, 3], &[1, 2, 3], &[]),
        ],
        0,
        MarkAndUnsettled(2),
    ),
    (
        "the own dead letters are settled, and those of another relay are not",
        &[settled(&[2], &[1], &[2]), dead(&[2], &[1, 2], &[])],
        0,
        Unsettled(1),
    ),
    (
        "the dead letters of both relays are open",
        &[dead(&[2], &[1], &[2]), dead(&[2], &[1, 2], &[])],
        1,
        OpenAndAllStay(1),
    ),
    (
        "the own dead letters are open, and another relay has settled its own",
        &[dead(&[2], &[1], &[2]), settled(&[2], &[1, 2], &[])],
        1,
        OpenAndAllStay(1),
    ),
    (
        "the own dead letters are resolved, and another relay has settled its own",
        &[dead(&[2], &[1], &[2]), settled(&[2], &[1, 2], &[])],
        0,
        Settled(2),
    ),
    (
        "both relays have settled their dead letters",
        &[settled(&[2], &[1], &[2]), settled(&[2], &[1, 2], &[])],
        0,
        Settled(2),
    ),
    (
        "both have settled, and the store does not have the own dead letters any more",
        &[settled(&[2], &[1, 2], &[]), settled(&[2], &[1, 2], &[])],
        0,
        Settled(2),
    ),
    (
        "both have settled, and a dead letter was written once more",
        &[settled(&[2], &[1], &[2]), settled(&[2], &[1, 2], &[])],
        1,
        OpenAndAllStay(1),
    ),
    (
        "both have settled, and the own slot passed over a row",
        &[settled(&[2], &[1, 3], &[2]), settled(&[2], &[1, 2], &[])],
        0,
        Stays(3, 2),
    ),
    (
        "both have settled, and another relay has not sent a row",
        &[
            settled(&[2], &[1], &[2]),
            Slot {
                sent: &[],
                ..settled(&[2], &[1, 2], &[])
            },
        ],
        0,
        Stays(2, 2),
    ),
    (
        "another relay has settled, and the store was renamed",
        &[dead(&[2], &[1, 2], &[]), settled(&[2], &[1, 2], &[])],
        0,
        Lost(1),
    ),
];

/// Returns the decision, and checks its buckets.
fn decided(verdict: &Verdict<Difference>) -> Expected {
    let buckets = Some((NUMBER, NUMBER));
    match verdict {
        Verdict::Sent(proof) => {
            assert_eq!(proof.buckets(), buckets);
            sent(proof)
        }
        Verdict::OpenDeadLetters { rows, others: None } => OpenAndAllStay(*rows),
        Verdict::OpenDeadLetters { rows, others } => {
            let others = others.as_ref().map(|one| (one.buckets(), one.resolved()));
            assert_eq!(others, Some((buckets, &[][..])));
            Open(*rows)
        }
        Verdict::Unsettled { resolved, reason } => {
            assert_eq!(reason.bucket, NUMBER);
            unsettled(resolved, reason)
        }
        Verdict::Stays(difference) => {
            assert_eq!(difference.bucket, NUMBER);
            stays(difference)
        }
    }
}

fn sent(proof: &Proof) -> Expected {
    match proof.resolved() {
        [] => Sent,
        resolved => Settled(resolved.len()),
    }
}

/// Only own rows are marked.
fn unsettled(resolved: &[ResolvedRows], difference: &Difference) -> Expected {
    assert_eq!(
        (difference.lost_dead_letters, difference.rows_differ),
        (0, false)
    );
    match resolved {
        [] => Unsettled(difference.unsettled),
        [rows] if rows.slot == 0 && rows.bucket == NUMBER => MarkAndUnsettled(difference.unsettled),
        _ => panic!("{resolved:?}"),
    }
}

fn stays(difference: &Difference) -> Expected {
    let Difference {
        present, accounted, ..
    } = *difference;
    match (difference.lost_dead_letters, difference.rows_differ) {
        (0, true) => Stays(present, accounted),
        (lost, true) => LostAnd(lost, present, accounted),
        (lost, false) => Lost(lost),
    }
}

#[test]
fn rows_count_as_sent_only_if_each_account_has_exactly_these() {
    for (name, slots, open, expected) in CASES {
        let verdict = bucket(NUMBER, slots, *open).verdict();
        assert_eq!(decided(&verdict), *expected, "{name}");
    }
}

/// A partition has the same cases: its only bucket decides.
#[test]
fn a_partition_is_dropped_only_if_all_its_rows_count_as_sent() {
    for (name, slots, open, expected) in CASES {
        let rows = PartitionRows::Accounted {
            rows: 0,
            timeless: 0,
            uncarried: 0,
            buckets: vec![
                bucket(NUMBER - 1, &[slot(&[8], &[8])], 0),
                bucket(NUMBER, slots, *open),
            ],
            open: *open,
        };
        let decision = match rows.verdict() {
            Verdict::Sent(proof) => {
                assert_eq!(proof.buckets(), Some((NUMBER - 1, NUMBER)), "{name}");
                sent(&proof)
            }
            // None of its rows goes before all do.
            Verdict::OpenDeadLetters { rows, others: None } => match expected {
                Open(_) => Open(rows),
                _ => OpenAndAllStay(rows),
            },
            Verdict::Unsettled {
                resolved,
                reason: Reason::Differs(differ),
            } => {
                assert_eq!(differ.len(), 1, "{name}");
                unsettled(&resolved, &differ[0])
            }
            Verdict::Stays(Reason::Differs(differ)) => {
                assert_eq!(differ.len(), 1, "{name}");
                stays(&differ[0])
            }
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(decision, *expected, "{name}");
    }
}

/// A row that becomes a dead letter after the comparison must not be settled with those that were compared.
#[test]
fn a_proof_has_the_dead_letters_that_were_compared() {
    let resolved = dead(&[2, 3], &[1], &[2, 3]);
    let of_others = slot(&[1], &[1]);
    let rows = PartitionRows::Accounted {
        rows: 0,
        timeless: 0,
        uncarried: 0,
        buckets: vec![
            bucket(NUMBER, &[resolved], 0),
            bucket(NUMBER + 1, &[of_others], 0),
        ],
        open: 0,
    };
    let Verdict::Sent(proof) = rows.verdict() else {
        panic!("{:?}", rows.verdict());
    };
    let settled = ResolvedRows {
        slot: 0,
        bucket: NUMBER,
        sum: sum(&[2, 3]),
    };
    assert_eq!(proof.resolved(), [settled]);
}

/// The bounds of partitions may lie within ten minutes.
#[test]
fn a_partition_stays_while_a_bucket_that_it_shares_has_an_open_dead_letter() {
    let of_next = dead(&[2], &[1], &[2]);
    let rows = PartitionRows::Accounted {
        rows: 0,
        timeless: 0,
        uncarried: 0,
        buckets: vec![bucket(NUMBER, &[of_next], 1)],
        open: 0,
    };
    let verdict = rows.verdict();
    assert!(
        matches!(verdict, Verdict::OpenDeadLetters { rows: 1, .. }),
        "{verdict:?}"
    );
}

#[test]
fn a_partition_stays_for_other_reasons_too() {
    let of = |rows, timeless, uncarried, buckets| PartitionRows::Accounted {
        rows,
        timeless,
        uncarried,
        buckets,
        open: 0,
    };
    let accounted = |timeless, buckets| of(1, timeless, 0, buckets);
    let differs = |buckets: &[i64]| {
        let differ = buckets.iter().map(|bucket| Difference {
            bucket: *bucket,
            present: 3,
            accounted: 1,
            rows_differ: true,
            ..Difference::default()
        });
        Some(Reason::Differs(differ.collect()))
    };
    let sent = |number| bucket(number, &[slot(&[1], &[1])], 0);
    let more = |number| bucket(number, &[MORE], 0);
    let marked = |unmarked| PartitionRows::Marked { unmarked, open: 0 };
    let open = |unmarked| PartitionRows::Marked { unmarked, open: 2 };
    assert_eq!(
        open(0).verdict(),
        Verdict::OpenDeadLetters {
            rows: 2,
            others: None
        }
    );
    for (name, rows, reason) in [
        ("every row is marked", marked(0), None),
        (
            "8: an account of rows is no mark",
            marked(50),
            Some(Reason::Unmarked(50)),
        ),
        (
            "marked rows have open dead letters, and others are unmarked",
            open(1),
            Some(Reason::Unmarked(1)),
        ),
        ("it has no rows", of(0, 0, 0, vec![]), None),
        (
            "its rows are in no bucket that was compared",
            of(10, 0, 0, vec![]),
            Some(Reason::Uncompared(10)),
        ),
        (
            "the buckets have fewer rows than it",
            of(3, 0, 0, vec![sent(1), sent(2)]),
            Some(Reason::Uncompared(1)),
        ),
        (
            "the row filter leaves rows out",
            of(3, 0, 2, vec![]),
            Some(Reason::Uncarried(2)),
        ),
        ("all agree", accounted(0, vec![sent(1), sent(2)]), None),
        (
            "a row has the time -infinity",
            accounted(1, vec![]),
            Some(Reason::Timeless(1)),
        ),
        (
            "rows were written into it after it was detached",
            accounted(0, vec![sent(1), more(2), sent(3)]),
            differs(&[2]),
        ),
        (
            "two of its buckets differ",
            accounted(0, vec![more(1), sent(2), more(3)]),
            differs(&[1, 3]),
        ),
    ] {
        let stays = match rows.verdict() {
            Verdict::Sent(_) => None,
            Verdict::Stays(reason) => Some(reason),
            Verdict::OpenDeadLetters { .. } | Verdict::Unsettled { .. } => panic!("{name}"),
        };
        assert_eq!(stays, reason, "{name}");
    }
}

/// Counts decide only that rows stay, or are gone: rows that may be sent are compared.
#[test]
fn counts_alone_delete_nothing() {
    let differs = |present, accounted| {
        Some(Estimate::Differs(Difference {
            bucket: NUMBER,
            present,
            accounted,
            rows_differ: true,
            ..Difference::default()
        }))
    };
    for (name, slots, estimate) in [
        ("no row", &[(0, 0)][..], None),
        ("as many rows", &[(5, 5)], Some(Estimate::MayBeSent)),
        (
            "as many rows by each slot",
            &[(5, 5), (3, 3)],
            Some(Estimate::MayBeSent),
        ),
        ("more rows", &[(6, 5)], differs(6, 5)),
        ("fewer rows", &[(4, 5)], differs(4, 5)),
        (
            "only the other slot differs",
            &[(5, 5), (5, 4)],
            differs(5, 4),
        ),
        ("both slots differ", &[(5, 6), (5, 4)], differs(5, 6)),
        (
            "others deleted the rows that the other slot carried",
            &[(3, 3), (0, 5)],
            differs(0, 5),
        ),
        ("19: another process deleted all", &[(0, 0), (0, 0)], None),
        ("others deleted all", &[(0, 5)], Some(Estimate::Gone)),
    ] {
        let counts = slots.iter().map(|(present, accounted)| Counts {
            present: *present,
            accounted: *accounted,
        });
        let candidate = Candidate::new(NUMBER, &counts.collect::<Vec<_>>());
        assert_eq!(candidate.map(|one| one.estimate()), estimate, "{name}");
    }
}
