//! What an iteration does at a hint.

use caju_cache::{Encoding, Whole};
use caju_types::{Fingerprint, SplitKey, hash128};
use serde::{Deserialize, Serialize};

use super::SavePlan;
use crate::source::Split;

/// What an iteration does at one hint. Travels with leases, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePlan {
    /// The hint's name.
    pub hint: String,
    /// The fingerprint of the stages above it, by the definition. A job with a seed of its own stores what is
    /// drawn above the hint under another one.
    pub prefix: Fingerprint,
    /// Whether splits without a part are stored.
    pub put: bool,
    /// How parts are written.
    pub encoding: Encoding,
    /// The share of splits that is stored, in thousandths: which ones is a matter of their keys alone.
    #[serde(default = "all")]
    pub share: u32,
    /// Behind a stage that mixes splits: what is known of the set of parts. Absent: rows are computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<SetPlan>,
    /// Bytes per second that a worker's store takes, as the decision assumed: a split that is held up because it takes
    /// less than half of that falls back to being computed. Absent for policies that nobody decided on: they fall back
    /// on errors only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_s: Option<u64>,
    /// For a save: splits are stored, and no rows are read or delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<SavePlan>,
}

fn all() -> u32 {
    CachePlan::ALL
}

impl CachePlan {
    /// The share that means every split.
    pub const ALL: u32 = 1000;

    /// A plan that stores and reads every split.
    pub fn whole(hint: &str, prefix: Fingerprint, encoding: Encoding) -> Self {
        Self {
            hint: hint.to_string(),
            prefix,
            put: true,
            encoding,
            share: Self::ALL,
            set: None,
            write_bytes_per_s: None,
            save: None,
        }
    }

    /// A fraction from 0 to 1 as a share.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
    pub fn share_of(fraction: f64) -> u32 {
        (fraction.clamp(0.0, 1.0) * f64::from(Self::ALL)).round() as u32
    }

    /// Whether a split without a part is stored.
    pub(super) fn stores(&self, key: SplitKey) -> bool {
        self.put && self.means(key)
    }

    /// Whether a split is among those that are stored, as far as its key is concerned.
    pub(super) fn means(&self, key: SplitKey) -> bool {
        key.folded() % u64::from(Self::ALL) < u64::from(self.share)
    }

    /// The same for rows that are computed from now on, and drawn as before: a set that can never be whole is not
    /// written on.
    #[must_use]
    pub fn without_set(mut self) -> Self {
        self.set = None;
        self
    }
}

/// How many splits of a task were computed, stored, and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SplitModes {
    /// Computed, not stored.
    pub compute: u64,
    /// Computed and stored.
    pub put: u64,
    /// Read from a snapshot.
    pub get: u64,
    /// Of those that were computed: begun to be stored, and given up.
    pub fell_back: u64,
    /// Of those that were stored: begun before it was decided, and stored from the rows that were kept until then.
    pub kept: u64,
}

/// What is known of the set of parts at a hint behind a stage that mixes splits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetPlan {
    /// The dispatcher has not looked yet.
    Open,
    /// There is none: every task writes its part of one.
    Write(SetTarget),
    /// There is one: leases name the parts to read.
    Read {
        /// Its folder in the cache.
        id: Fingerprint,
    },
}

/// A set to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetTarget {
    /// Its folder in the cache.
    pub id: Fingerprint,
    /// The attempt, so that parts of two attempts do not mix.
    pub attempt: String,
    /// What it has to cover.
    pub whole: Whole,
}

/// A part of a set, as the leases of all splits that it covers name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLease {
    /// The set.
    pub set: Fingerprint,
    /// The key of the part.
    pub part: SplitKey,
    /// The attempt that wrote it.
    pub attempt: String,
    /// The split's number in the part.
    pub at: u32,
    /// How many splits the part covers. Their leases come one after another.
    pub of: u32,
}

/// The name of a split in a set: its key, with the repetition and the rows that are left of it.
pub fn cover(split: &Split) -> u128 {
    let (skip, take) = split.trim.unwrap_or((0, u64::MAX));
    hash128(format!("caju.cover/v1 {} {} {skip} {take}", split.key, split.repetition).as_bytes())
}

/// The folder of the set that a hint of this base has for a listing.
pub fn set_id(base: Fingerprint, whole: Whole) -> Fingerprint {
    Fingerprint(hash128(format!("caju.set/v1 {base} {} {:032x}", whole.splits, whole.sum).as_bytes()))
}
