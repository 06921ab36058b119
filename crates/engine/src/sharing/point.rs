//! Sharing points: where rows of different jobs are equal.

use std::hash::{Hash, Hasher};

use arrow_schema::Schema;
use caju_types::{Fingerprint, hash128, mix64};

use crate::bind::BoundPipeline;
use crate::hint::BoundHint;

/// The place of the end of the split-local stages, where hints have their index.
pub(crate) const END: usize = usize::MAX;

/// Added to a hint's index: rows of the window that enter there, unlike rows of a part.
const FROM_WINDOW: usize = 1 << (usize::BITS - 2);

/// The place at which rows of the window enter for a sharing point.
pub(crate) fn entry_index(place: usize) -> usize {
    if place == END { END } else { place + FROM_WINDOW }
}

/// A place of a pipeline at which rows can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingPoint {
    /// Names the rows there: equal for pipelines whose rows of a split are equal there.
    pub(crate) key: u128,
    /// The index of the hint, or [`END`].
    pub(crate) place: usize,
}

impl SharingPoint {
    /// A short name of the rows there, by which the dispatcher finds jobs with common points.
    pub fn name(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "the halves of a hash")]
        let (high, low) = ((self.key >> 64) as u64, self.key as u64);
        mix64(high, low)
    }
}

impl BoundPipeline {
    /// The places at which tasks of a job with this seed can share the rows of an epoch, from the source on. None where a
    /// task sees only some rows of a split, or reads stored parts alone. With `caching` there are none where a random stage
    /// is above a hint: rows of stored splits have the draws of another epoch. None below a function that drops or adds rows by
    /// draws of a generator which is not caju's: a task that computes the rest of a split would find other rows there. None where
    /// a dataset of a `sample` never ends: a task would remember the splits that it has had without end.
    pub fn sharing_points(&self, seed: u64, epoch: u64, caching: bool) -> Vec<SharingPoint> {
        let Some(end) = self.local_end() else { return Vec::new() };
        if self.def().source.endless_dataset().is_some() {
            return Vec::new();
        }
        if self.def().options.cache_only || caching && self.hints().iter().any(|h| h.random) {
            return Vec::new();
        }
        let draw = |random: bool| random.then_some((seed, epoch));
        let at_hint = |(place, hint): (usize, &BoundHint)| {
            let of = hint.clone().seeded(seed).fingerprint;
            SharingPoint {
                key: key(of, &hint.schema, hint.found_columns.as_deref(), draw(hint.random)),
                place,
            }
        };
        let Some(fixed) = self.def().stages_with_fixed_rows() else { return Vec::new() };
        let is_fixed = |hint: &BoundHint| hint.set.is_none() && hint.stage <= fixed;
        let local = self.hints().iter().enumerate().filter(|(_, hint)| is_fixed(hint));
        let mut points: Vec<SharingPoint> = local.map(at_hint).collect();
        let reseeded = caju_pipeline::reseeded(&end.canonical, seed).map_or(end.fingerprint, |(_, of)| of);
        if let Some(schema) = self.stage_schemas().get(end.stages).filter(|_| end.stages <= fixed) {
            let key = key(reseeded, schema, end.found_columns.as_deref(), draw(end.random));
            points.push(SharingPoint { key, place: END });
        }
        points
    }
}

fn key(of: Fingerprint, schema: &Schema, found: Option<&str>, draw: Option<(u64, u64)>) -> u128 {
    // Columns have an order and types here, which fingerprints leave out.
    let mut columns = HashedBytes::default();
    schema.fields().hash(&mut columns);
    let columns = hash128(&columns.0);
    hash128(format!("caju.sharing/v1 {of} {draw:?} {found:?} {columns:032x}").as_bytes())
}

/// Collects what is hashed. Fields are hashed with their metadata in order, which their text does not have.
#[derive(Default)]
struct HashedBytes(Vec<u8>);

impl Hasher for HashedBytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field};

    use super::*;

    #[test]
    fn equal_columns_have_one_key_however_their_metadata_is_ordered() {
        let schema = |name: &str| {
            let metadata = (0..20).map(|i| (format!("key-{i}"), i.to_string()));
            let inner = Field::new("item", DataType::Int64, true).with_metadata(metadata.clone().collect());
            let list = Field::new(name, DataType::new_list(DataType::Int64, true), true);
            let nested = Field::new_list("nested", inner, false);
            Schema::new(vec![list.with_metadata(metadata.collect()), nested])
        };
        let of = |name| key(Fingerprint(7), &schema(name), None, None);
        assert!((0..20).all(|_| of("a") == of("a")));
        assert_ne!(of("a"), of("b"));
    }
}
