//! The description of a set of sample files.

use crate::{Format, Kind};

/// A set of sample files: what to generate, and where.
#[derive(Debug, Clone)]
pub struct SampleSet {
    /// What the rows are about.
    pub kind: Kind,
    /// The folder of the files: a URL or an absolute path.
    pub out: String,
    /// Number of rows, at most `i64::MAX`.
    pub count: u64,
    /// Another seed gives other rows.
    pub seed: u64,
    /// At least one format. One is written into `out`, several into one folder each below `out`.
    pub formats: Vec<Format>,
    /// Files per format. By default their number follows from the count.
    pub shards: Option<u64>,
    /// Whether [`crate::write()`] replaces the sample data that an earlier run left in the same folder.
    pub overwrite: bool,
}

impl SampleSet {
    /// Files per format. At least one, and no more than there are rows.
    pub fn shards(&self) -> u64 {
        let by_count = self.count.div_ceil(self.kind.shard_rows());
        self.shards.unwrap_or(by_count).clamp(1, self.count.max(1))
    }

    /// The rows of one file. Two files differ by at most one row.
    #[expect(clippy::cast_possible_truncation, reason = "at most the count")]
    pub(crate) fn shard(&self, shard: u64) -> std::ops::Range<u64> {
        let at = |i: u64| (u128::from(self.count) * u128::from(i) / u128::from(self.shards())) as u64;
        at(shard)..at(shard + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_row_once() {
        for (count, shards) in [(0, None), (1, Some(5)), (10, Some(3)), (5000, None)] {
            let set = SampleSet {
                kind: Kind::Images,
                out: String::new(),
                count,
                seed: 0,
                formats: vec![Format::Tfrecord],
                shards,
                overwrite: false,
            };
            let mut next = 0;
            for i in 0..set.shards() {
                let rows = set.shard(i);
                assert_eq!(rows.start, next);
                next = rows.end;
            }
            assert_eq!(next, count);
        }
    }
}
