//! Rounds of random elements.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch};
use caju_wire::Run;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A batch of rows from `start` on, whose lists have `width` items each.
fn element(start: u64, rows: u32, width: usize, bucket: u32) -> Chunk {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(start as i64..start as i64 + i64::from(rows)));
    let lists = (0..rows).map(|_| Some(vec![Some(7i64); width]));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    let batch = RecordBatch::try_from_iter([("id", ids), ("tokens", lists)]).unwrap();
    let runs = vec![Run { split: 0, start, len: rows.into() }];
    let round = RoundMark { bucket: Some(bucket), remainder_round: 0 };
    Chunk { elements: Elements::Lengths(vec![rows]), round, ..Chunk::rows_of(batch, runs) }
}

fn definition(stage: &serde_json::Value) -> DatasetDef {
    let def = json!({"source": {"range": {"start": 0, "end": 10}}, "steps": [stage]});
    DatasetDef::from_json_str(&def.to_string()).unwrap()
}

fn bucketed(pad: bool) -> DatasetDef {
    let stage = json!({"bucket_by_length": {"length": "id", "boundaries": [3, 6], "batch_sizes": [2, 2, 2], "pad": pad}});
    definition(&stage)
}

/// Each element's class and the widths of its lists, by consumer.
fn shapes(assigned: &[(usize, Chunk)], consumers: usize) -> Vec<Vec<(Option<u32>, i32)>> {
    let mut out = vec![Vec::new(); consumers];
    for (to, chunk) in assigned {
        assert_eq!(chunk.num_elements(), 1);
        let batch = chunk.concat().unwrap();
        let lists = batch.column(1).as_list::<i32>();
        assert!((0..lists.len()).all(|row| lists.value_length(row) == lists.value_length(0)));
        out[*to].push((chunk.round.bucket, lists.value_length(0)));
    }
    out
}

fn rows(assigned: &[(usize, Chunk)]) -> Vec<u64> {
    let mut rows: Vec<u64> =
        assigned.iter().flat_map(|(_, c)| c.runs.iter().flat_map(|r| r.start..r.start + r.len)).collect();
    rows.sort_unstable();
    rows
}

proptest! {
    /// Random elements of three classes: in every round all consumers get one of the same class and the same shape, all of them
    /// full or none. Every row is assigned once, and less than a round of each class is left.
    #[test]
    fn cor_03_every_round_is_of_one_class_and_one_shape(
        elements in prop::collection::vec((1u32..4, 1usize..9, 0u32..3), 0..40),
        consumers in 1usize..5,
    ) {
        let mut rounds = Rounds::new(&bucketed(true), consumers, false);
        let (mut assigned, mut start) = (Vec::new(), 0);
        for (rows, width, bucket) in &elements {
            assigned.extend(rounds.assign(element(start, *rows, *width, *bucket)).unwrap());
            start += u64::from(*rows);
        }
        assigned.extend(rounds.finish().unwrap());
        let by_consumer = shapes(&assigned, consumers);
        prop_assert!(by_consumer.iter().all(|own| *own == by_consumer[0]), "{by_consumer:?}");
        let short = |n| assigned.iter().filter(move |(to, _)| *to == n).map(|(_, c)| c.rows() < 2).collect::<Vec<_>>();
        prop_assert!((0..consumers).all(|n| short(n) == short(0)), "a round has full elements and others");
        let (remainder, _) = rounds.remainder();
        let mut given = assigned;
        for (at, kind) in (0..).zip(&remainder) {
            let pad_to = vec![0, kind.widths[1] + 3];
            let piece = v1::RemainderPiece { start: at, end: at + 1, round: 1 + at, pad_to, ..Default::default() };
            let got = rounds.piece(&piece).unwrap();
            prop_assert_eq!(got[0].1.round.remainder_round, 1 + at);
            prop_assert_eq!(shapes(&got, 1)[0][0].1 as u32, kind.widths[1] + 2, "padded as the dispatcher says");
            given.extend(got);
        }
        prop_assert_eq!(rows(&given), (0..start).collect::<Vec<_>>());
        for class in 0..3 {
            for is_short in [false, true] {
                let left = |k: &&v1::RemainderElement| k.bucket == class + 1 && (k.rows < 2) == is_short;
                prop_assert!(remainder.iter().filter(left).count() < consumers);
            }
        }
    }

    /// Rows that are elements: consumer i's r-th element is number r x N + i.
    #[test]
    fn cor_11_rows_go_to_the_consumers_in_turn(chunks in prop::collection::vec(1u64..30, 0..20), consumers in 1usize..5) {
        let mut rounds = Rounds::new(&definition(&json!({"prefetch": 1})), consumers, false);
        let (mut got, mut start) = (vec![Vec::new(); consumers], 0u64);
        for len in chunks {
            let ids = Int64Array::from_iter_values(start as i64..(start + len) as i64);
            let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap();
            let chunk = Chunk::rows_of(batch, vec![Run { split: 0, start, len }]);
            start += len;
            for (to, chunk) in rounds.assign(chunk).unwrap() {
                let ids = chunk.concat().unwrap();
                got[to].extend(ids.column(0).as_primitive::<Int64Type>().values().iter().copied());
                prop_assert_eq!(chunk.runs.iter().map(|r| r.len).sum::<u64>(), chunk.rows() as u64);
            }
        }
        prop_assert!(rounds.finish().unwrap().is_empty());
        for (i, own) in got.iter().enumerate() {
            let want: Vec<i64> = (0..start as i64 / consumers as i64).map(|r| r * consumers as i64 + i as i64).collect();
            prop_assert_eq!(own, &want);
        }
        prop_assert_eq!(rounds.remainder().0.len() as u64, start % consumers as u64);
    }

    /// With `tokens` every row is assigned once, batches keep their numbers of rows, and all consumers have equally many.
    #[test]
    fn tokens_are_packed_once(
        widths in prop::collection::vec(1usize..30, 0..120),
        consumers in 1usize..5,
    ) {
        let mut rounds = Rounds::new(&definition(&json!({"batch": 2})), consumers, true);
        let mut assigned = Vec::new();
        for (at, width) in widths.iter().enumerate() {
            let chunk = element(2 * at as u64, 2, *width, 0);
            assigned.extend(rounds.assign(Chunk { round: RoundMark::default(), ..chunk }).unwrap());
        }
        assigned.extend(rounds.finish().unwrap());
        prop_assert!(assigned.iter().all(|(_, c)| c.elements == Elements::Lengths(vec![2])));
        let of = |consumer| assigned.iter().filter(|(to, _)| *to == consumer).count();
        prop_assert!((0..consumers).all(|c| of(c) == widths.len() / consumers));
        prop_assert_eq!(rounds.remainder().0.len(), widths.len() % consumers);
        let got: BTreeSet<u64> = rows(&assigned).into_iter().collect();
        prop_assert_eq!(got.len(), widths.len() / consumers * consumers * 2);
    }

    /// With `tokens` all consumers get full batches, whatever the numbers of rows of the task's: less than a round of these is
    /// left, and one batch with fewer rows.
    #[test]
    fn rows_of_short_batches_are_packed_into_full_ones(sizes in prop::collection::vec(1u32..5, 0..90), consumers in 1usize..5) {
        let mut rounds = Rounds::new(&definition(&json!({"batch": 4})), consumers, true);
        let (mut assigned, mut start) = (Vec::new(), 0);
        for rows in sizes {
            let chunk = element(start, rows, 3, 0);
            start += u64::from(rows);
            assigned.extend(rounds.assign(Chunk { round: RoundMark::default(), ..chunk }).unwrap());
        }
        assigned.extend(rounds.finish().unwrap());
        prop_assert!(assigned.iter().all(|(_, c)| c.elements == Elements::Lengths(vec![4])));
        let of = |consumer| assigned.iter().filter(|(to, _)| *to == consumer).count() as u64;
        let each = start / 4 / consumers as u64;
        prop_assert!((0..consumers).all(|c| of(c) == each));
        let left: Vec<u64> = rounds.remainder().0.iter().map(|k| k.rows).collect();
        let rest = start - 4 * each * consumers as u64;
        let mut want = vec![4; usize::try_from(rest / 4).unwrap()];
        want.extend((!rest.is_multiple_of(4)).then_some(rest % 4));
        prop_assert_eq!(left, want);
        let mut given = assigned;
        for at in 0..rounds.remainder().0.len() as u64 {
            let piece = v1::RemainderPiece { start: at, end: at + 1, round: 1, ..Default::default() };
            given.extend(rounds.piece(&piece).unwrap());
        }
        prop_assert_eq!(rows(&given), (0..start).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_not_there_is_not_given_out() {
    let rounds = Rounds::new(&bucketed(false), 2, false);
    assert!(rounds.piece(&v1::RemainderPiece { end: 1, ..Default::default() }).is_err());
}
