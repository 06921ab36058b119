//! The numbers by which rows below a `shard` draw.
//!
//! A shard has some of the rows of a split. Behind the split-local stages these are counted from 0, as acknowledgements and
//! states need it, so rows of two shards have equal ordinals. Equal numbers are equal draws. Stages below a shard therefore draw
//! by other numbers:
//!
//! - In the split-local stages rows keep the ordinals that they have without the shard. A row that was repeated below the shard
//!   has a number that is made of its ordinal and its place among the copies ([`CopyNumbers`]).
//! - Behind the first cross-split stage, the ordinals of a shard's rows are spread so that those of other shards fit between
//!   them ([`ShardPlaces`]).

use std::collections::HashMap;

use caju_sources::Stride;
use caju_types::mix64;
use caju_wire::{Chunk, Run, push_run};

/// Set in the numbers of copies. No ordinal is as large: a split has fewer rows.
const COPY: u64 = 1 << 63;
/// Set in the numbers of copies that are hashes of an ordinal and a place.
const HASHED: u64 = 1 << 62;
/// The bits of a place among copies, in a number that is no hash.
const PLACE_BITS: u32 = 22;
/// The bits of an ordinal, in a number that is no hash.
const ORDINAL_BITS: u32 = 40;

/// The number of a copy of a row. Copies have different numbers. A number is a hash of 61 bits if the ordinal or the place has too
/// many bits for it, as the number of a copy that is copied again.
fn copy_number(ordinal: u64, place: u64) -> u64 {
    if ordinal >> ORDINAL_BITS == 0 && place >> PLACE_BITS == 0 {
        return COPY | (ordinal << PLACE_BITS) | place;
    }
    // The upper bits are free, so that the end of a run of such numbers is a number, too.
    COPY | HASHED | (mix64(ordinal, place) >> 3)
}

/// A row of a split for messages, by its ordinal or the number of a copy.
pub(crate) fn describe_row(number: u64) -> String {
    if number & COPY == 0 {
        return format!("row {number} of it");
    }
    if number & HASHED != 0 {
        return "a copy of a row of it".to_string();
    }
    let (ordinal, place) = ((number & !COPY) >> PLACE_BITS, number & ((1 << PLACE_BITS) - 1));
    format!("copy {place} of row {ordinal} of it")
}

/// Numbers the rows that stages below a shard repeated.
#[derive(Debug, Default)]
pub(crate) struct CopyNumbers {
    /// For each split: the ordinal of the last row, and the place of that row among the copies.
    last: HashMap<u64, (u64, u64)>,
}

impl CopyNumbers {
    /// Numbers the rows of a chunk. The rows of a split come in order, so the copies of a row follow one another, in one chunk or
    /// in several.
    pub(crate) fn renumber(&mut self, chunk: &mut Chunk) {
        let mut numbered = Vec::with_capacity(chunk.runs.len());
        for run in &chunk.runs {
            for ordinal in run.start..run.start + run.len {
                let place = match self.last.get(&run.split) {
                    Some((last, place)) if *last == ordinal => place + 1,
                    _ => 0,
                };
                self.last.insert(run.split, (ordinal, place));
                push_run(&mut numbered, Run { split: run.split, start: copy_number(ordinal, place), len: 1 });
            }
        }
        chunk.runs = numbered;
    }

    /// No rows of the split follow.
    pub(crate) fn end(&mut self, split: u64) {
        self.last.remove(&split);
    }
}

/// The first ordinal from `from` on that a shard has of a split, and the distance of its ordinals.
pub(crate) fn first_and_step(stride: Stride, from: u64) -> (u64, u64) {
    let step = stride.step.max(1);
    let missing = (stride.first % step).wrapping_add(step - from % step) % step;
    (from.wrapping_add(missing), step)
}

/// The numbers by which stages behind the first cross-split stage draw, where shards are above it.
///
/// Rows of a planned shard have the ordinals of the source there, unless a stage drops or repeats rows.
#[derive(Debug)]
pub(crate) struct ShardPlaces {
    /// The position of the first row stage behind the first cross-split stage.
    from: u32,
    /// The shards from the source on: the number of shards, and which of them. None for the planned shard: each split says which
    /// rows it has.
    shards: Vec<Option<(u64, u64)>>,
}

impl ShardPlaces {
    pub(crate) fn new(from: u32, shards: Vec<Option<(u64, u64)>>) -> Self {
        Self { from, shards }
    }

    /// Whether a stage at this position draws by these numbers.
    pub(crate) fn are_for(&self, position: u32) -> bool {
        position >= self.from
    }

    /// The number of the row with this ordinal. `planned`: the first ordinal and the distance of the ordinals that a planned shard
    /// has of the row's split. The number only enters a hash, so it may wrap.
    pub(crate) fn number(&self, ordinal: u64, planned: Option<(u64, u64)>) -> u64 {
        self.shards.iter().rev().fold(ordinal, |place, shard| match (shard, planned) {
            (Some((num_shards, index)), _) => place.wrapping_mul(*num_shards).wrapping_add(*index),
            (None, Some((first, step))) => place.wrapping_mul(step).wrapping_add(first),
            (None, None) => place,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use arrow_array::{Int64Array, RecordBatch};

    use super::*;

    /// The numbers of rows with these ordinals, in chunks that are cut here.
    fn numbers(ordinals: &[u64], cut: usize) -> Vec<u64> {
        let mut of_copies = CopyNumbers::default();
        let mut chunk = |ordinals: &[u64]| {
            let ids = Int64Array::from_iter_values(0..ordinals.len() as i64);
            let rows = RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
            let runs = ordinals.iter().map(|&start| Run { split: 7, start, len: 1 }).collect();
            let mut chunk = Chunk::rows_of(rows, runs);
            of_copies.renumber(&mut chunk);
            assert_eq!(chunk.runs.iter().map(|r| r.len).sum::<u64>(), ordinals.len() as u64);
            chunk.runs.iter().flat_map(|r| r.start..r.start + r.len).collect::<Vec<_>>()
        };
        [chunk(&ordinals[..cut]), chunk(&ordinals[cut..])].concat()
    }

    #[test]
    fn copies_have_numbers_of_their_own_however_chunks_cut_them() {
        let large = (1 << ORDINAL_BITS) - 1;
        let ordinals = [3, 3, 3, 4, 9, 9, large, large, large + 1, large + 1, u64::MAX >> 1, u64::MAX >> 1];
        let whole = numbers(&ordinals, 0);
        assert_eq!(whole.iter().collect::<HashSet<_>>().len(), ordinals.len());
        assert!((0..=ordinals.len()).all(|cut| numbers(&ordinals, cut) == whole));
        assert!(whole.iter().all(|number| number & COPY != 0));
        // Copies of copies.
        let again: Vec<u64> = whole.iter().flat_map(|number| [*number; 2]).collect();
        let again = numbers(&again, 3);
        assert_eq!(again.iter().chain(&whole).collect::<HashSet<_>>().len(), 3 * ordinals.len());
    }

    #[test]
    fn messages_name_the_row_that_was_repeated() {
        let numbers = numbers(&[5, 5, 1 << ORDINAL_BITS], 0);
        let texts: Vec<String> = numbers.into_iter().chain([17]).map(describe_row).collect();
        let want =
            ["copy 0 of row 5 of it", "copy 1 of row 5 of it", "a copy of a row of it", "row 17 of it"];
        assert_eq!(texts, want);
    }

    #[test]
    fn rows_of_all_shards_have_different_numbers() {
        let mut numbers = HashSet::new();
        for (outer, inner) in (0..3).flat_map(|outer| (0..5).map(move |inner| (outer, inner))) {
            let places = ShardPlaces::new(2, vec![Some((3, outer)), Some((5, inner))]);
            numbers.extend((0..100).map(|ordinal| places.number(ordinal, None)));
        }
        assert_eq!(numbers.len(), 3 * 5 * 100);
    }

    /// A planned shard whose rows no stage drops or repeats draws by the ordinals of the source.
    #[test]
    fn rows_of_a_planned_shard_have_their_ordinals_back() {
        for (step, from) in [(1, 0), (4, 0), (4, 6), (7, 13), (1 << 53, 3)] {
            for first in [0, step / 2, step - 1] {
                let stride = Stride { first, step };
                let ordinals: Vec<u64> = (from..from + 100).filter(|o| stride.has(*o)).collect();
                let places = ShardPlaces::new(0, vec![None]);
                let planned = Some(first_and_step(stride, from));
                let found = (0..ordinals.len() as u64).map(|place| places.number(place, planned));
                assert_eq!(found.collect::<Vec<_>>(), ordinals);
            }
        }
    }
}
