//! Batches of nearly equal numbers of items, packed from the rows of several rounds.
//!
//! Rows of very different lengths make batches of different costs, and in each round all consumers wait for the one with the
//! most expensive batch. [`pack`] takes the rows of a window of batches and gives each, longest first, to the batch that has
//! the fewest items so far (the "longest processing time" rule of scheduling). Every batch keeps its number of rows. Batches
//! of like numbers of items then make a round.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use arrow_array::cast::AsArray;
use arrow_array::{Array, OffsetSizeTrait, RecordBatch};
use arrow_schema::DataType;

/// The batches of each round, as indices of rows.
pub(crate) type PackedRounds = Vec<Vec<Vec<usize>>>;

/// Packs rows with these numbers of items into batches of these numbers of rows, and makes rounds of `consumers` batches.
/// The number of batches is a multiple of `consumers`.
pub(crate) fn pack(items: &[u64], sizes: &[usize], consumers: usize) -> PackedRounds {
    let mut rows: Vec<usize> = (0..items.len()).collect();
    rows.sort_by_key(|row| (Reverse(items.get(*row)), *row));
    let mut batches: Vec<(u64, Vec<usize>)> = sizes.iter().map(|_| (0, Vec::new())).collect();
    let open = sizes.iter().enumerate().filter(|(_, size)| **size > 0);
    let mut lightest: BinaryHeap<Reverse<(u64, usize)>> = open.map(|(at, _)| Reverse((0, at))).collect();
    for row in rows {
        let Some(Reverse((sum, at))) = lightest.pop() else { break };
        let Some((own, rows)) = batches.get_mut(at) else { break };
        *own = sum.saturating_add(items.get(row).copied().unwrap_or(0));
        rows.push(row);
        if sizes.get(at).is_some_and(|size| rows.len() < *size) {
            lightest.push(Reverse((*own, at)));
        }
    }
    batches.sort_by_key(|(sum, rows)| (Reverse(*sum), rows.first().copied()));
    let mut rounds: PackedRounds = batches
        .chunks(consumers.max(1))
        .map(|round| {
            round
                .iter()
                .map(|(_, rows)| {
                    let mut rows = rows.clone();
                    rows.sort_unstable();
                    rows
                })
                .collect()
        })
        .collect();
    // In the order of their first rows, so that long rows do not come first.
    rounds.sort_by_key(|round: &Vec<Vec<usize>>| round.iter().flatten().min().copied());
    for (at, round) in rounds.iter_mut().enumerate() {
        let n = round.len().max(1);
        // No consumer gets the heaviest batch of every round.
        round.rotate_left(at % n);
    }
    rounds
}

/// The items of each row: those of its lists, and where there is no list the bytes of its texts.
pub(crate) fn items_per_row(batch: &RecordBatch) -> Vec<u64> {
    let mut items = vec![0u64; batch.num_rows()];
    let has_lists =
        batch.columns().iter().any(|c| matches!(c.data_type(), DataType::List(_) | DataType::LargeList(_)));
    for column in batch.columns() {
        match column.data_type() {
            DataType::List(_) => add_lengths(&mut items, column.as_list::<i32>().value_offsets()),
            DataType::LargeList(_) => add_lengths(&mut items, column.as_list::<i64>().value_offsets()),
            DataType::Utf8 if !has_lists => {
                add_lengths(&mut items, column.as_string::<i32>().value_offsets())
            }
            DataType::LargeUtf8 if !has_lists => {
                add_lengths(&mut items, column.as_string::<i64>().value_offsets());
            }
            DataType::Binary if !has_lists => {
                add_lengths(&mut items, column.as_binary::<i32>().value_offsets())
            }
            DataType::LargeBinary if !has_lists => {
                add_lengths(&mut items, column.as_binary::<i64>().value_offsets());
            }
            DataType::Utf8View if !has_lists => add_views(&mut items, column.as_string_view().views()),
            DataType::BinaryView if !has_lists => add_views(&mut items, column.as_binary_view().views()),
            _ => {}
        }
    }
    items
}

fn add_lengths<O: OffsetSizeTrait>(items: &mut [u64], offsets: &[O]) {
    for (sum, ends) in items.iter_mut().zip(offsets.windows(2)) {
        if let [start, end] = ends {
            *sum += (end.as_usize() - start.as_usize()) as u64;
        }
    }
}

/// The lower 32 bits of a view are the length of its value.
fn add_views(items: &mut [u64], views: &[u128]) {
    items.iter_mut().zip(views).for_each(|(sum, view)| *sum += (*view & 0xffff_ffff) as u64);
}

/// The sums of what batches of a round take, for tests: the most expensive batch against the mean.
#[cfg(test)]
fn cost_over_bound(items: &[u64], rounds: &PackedRounds, consumers: usize) -> f64 {
    let sum = |rows: &Vec<usize>| rows.iter().map(|row| items[*row]).sum::<u64>();
    let slowest: u64 = rounds.iter().map(|round| round.iter().map(sum).max().unwrap_or(0)).sum();
    slowest as f64 / (items.iter().sum::<u64>() as f64 / consumers as f64)
}

/// Rows by batch, for tests.
#[cfg(test)]
fn sizes_of(rounds: &PackedRounds) -> Vec<usize> {
    rounds.iter().flatten().map(Vec::len).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, StringArray, StringViewArray};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_behind_views_count_like_others() {
        let texts = ["".to_owned(), "abc".to_owned(), "x".repeat(100)];
        let of = |column: ArrayRef| items_per_row(&RecordBatch::try_from_iter([("x", column)]).unwrap());
        let views = of(Arc::new(StringViewArray::from_iter_values(&texts)));
        assert_eq!(
            (views.as_slice(), views.clone()),
            (&[0, 3, 100][..], of(Arc::new(StringArray::from_iter_values(&texts))))
        );
    }

    proptest! {
        /// Every row is in one batch, batches keep their sizes, and every round has one for each consumer.
        #[test]
        fn every_row_is_packed_once(
            items in prop::collection::vec(0u64..1000, 0..200),
            size in 1usize..7,
            consumers in 1usize..5,
        ) {
            let batches = items.len() / size / consumers * consumers;
            let items = &items[..batches * size];
            let rounds = pack(items, &vec![size; batches], consumers);
            prop_assert!(rounds.iter().all(|round| round.len() == consumers));
            let mut rows: Vec<usize> = rounds.iter().flatten().flatten().copied().collect();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..items.len()).collect::<Vec<_>>());
            prop_assert!(sizes_of(&rounds).iter().all(|n| *n == size));
        }

        /// Lengths of the kind that texts have (log-normal): the most expensive batches take at most a tenth more than
        /// perfect packing would.
        #[test]
        fn rounds_are_within_a_tenth_of_perfect_packing(draws in prop::collection::vec(-6.0f64..6.0, 1024)) {
            // The sum of six uniform draws is nearly normal.
            let normal = |at: usize| (0..6).map(|k| draws[(at * 7 + k * 131) % 1024]).sum::<f64>() / 72f64.sqrt();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths")]
            let items: Vec<u64> = (0..1024).map(|at| (100.0 * normal(at).exp()).max(1.0) as u64).collect();
            let over = cost_over_bound(&items, &pack(&items, &[32; 32], 4), 4);
            prop_assert!(over < 1.1, "{over}");
        }
    }
}
