//! Coverage: what of an iteration's splits is stored already.

use caju_planner::{Existing, Hint};
use serde::{Deserialize, Serialize};

use crate::encoding::Encoding;

/// Parts that cover a smaller fraction of the splits do not fix the encoding: they are read where they are met.
pub(crate) const MIN_COVERAGE: f64 = 0.1;
/// Where a job names its encoding, parts in another encoding are an option only above this fraction: then next to nothing
/// has to be written next to them.
const NEARLY_ALL: f64 = 0.9;

/// What is known of the coverage of an iteration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CoverageState {
    /// The storage is being checked; this is what was found so far, with the splits that were counted.
    Pending(Coverage),
    /// All that counts.
    Known(Coverage),
}

impl Default for CoverageState {
    fn default() -> Self {
        Self::Known(Coverage::default())
    }
}

impl CoverageState {
    /// What was found so far.
    pub(crate) fn so_far(&self) -> &Coverage {
        match self {
            Self::Pending(coverage) | Self::Known(coverage) => coverage,
        }
    }

    /// Splits that were counted so far.
    pub(crate) fn splits(&self) -> u64 {
        self.so_far().splits.unwrap_or(0)
    }
}

/// What a check of the storage found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// Parts that are stored split by split.
    pub parts: Vec<StoredParts>,
    /// Complete sets of parts behind cross-split stages.
    pub sets: Vec<StoredSet>,
    /// The number of splits of the source, if it could be counted.
    pub splits: Option<u64>,
}

/// Parts at a hint in one encoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredParts {
    /// The hint's name.
    pub hint: String,
    /// How they are written.
    pub encoding: Encoding,
    /// The fraction of the iteration's splits that have one, 0 to 1.
    pub fraction: f64,
}

/// A set all of whose parts exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSet {
    /// The hint's name.
    pub hint: String,
    /// How its parts are written.
    pub encoding: Encoding,
}

/// Snapshots that an option can be made of. Limits the encodings of each hint to the one that its parts have: parts are
/// read in the encoding that they were written in. `only` is the encoding that the job names.
pub(crate) fn usable(mut found: Vec<Existing>, hints: &mut [Hint], only: Option<Encoding>) -> Vec<Existing> {
    let admits = |format: &str, compression: &str| only.is_none_or(|only| only.is_named(format, compression));
    found.retain(|x| x.fraction >= if admits(&x.format, &x.compression) { MIN_COVERAGE } else { NEARLY_ALL });
    // An option has one encoding: the most complete snapshot of a hint counts.
    found.sort_by(|a, b| a.hint.cmp(&b.hint).then(b.fraction.total_cmp(&a.fraction)));
    found.dedup_by(|a, b| a.hint == b.hint);
    for hint in hints {
        let there = found.iter().find(|x| x.hint == hint.name);
        hint.encodings.retain(|e| match there {
            Some(x) => (&e.format, &e.compression) == (&x.format, &x.compression),
            None => admits(&e.format, &e.compression),
        });
    }
    found
}

/// What is stored at a hint, as the planner's profile says it.
pub(crate) fn existing(hint: &str, encoding: Encoding, fraction: f64) -> Existing {
    Existing {
        hint: hint.to_string(),
        format: encoding.format.to_string(),
        compression: encoding.compression.to_string(),
        fraction,
    }
}
