//! The cache plan: what the splits of an iteration do at one hint.

use caju_types::{Fingerprint, SplitKey, hash128};
use serde::{Deserialize, Serialize};

use crate::Encoding;

/// What an iteration does at one hint. Travels with leases and in the journal, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePlan {
    /// The hint's name.
    pub hint: String,
    /// The fingerprint of the stages above the hint, by the definition. A job with a seed of its own stores what is
    /// drawn above the hint under another fingerprint.
    pub prefix: Fingerprint,
    /// Whether splits without a part are stored.
    pub put: bool,
    /// How parts are written.
    pub encoding: Encoding,
    /// The fraction of the splits that is stored, in thousandths. A split's key alone says whether it is among them.
    #[serde(default = "all", rename = "share")]
    pub permille: u32,
    /// Behind a cross-split stage: what is known of the set of parts. Absent: rows are computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<SetPlan>,
    /// With a stored set: its rows come from nowhere else. So it is under `cache_only`, and where stages chose the rows in a random
    /// order when they were stored: computed ones would be others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub set_only: bool,
    /// Bytes per second that one worker's store takes, as the decision assumed. A split whose store takes less than half
    /// of that falls back to being computed. Absent for fixed policies: they fall back on errors only.
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
    /// The fraction that means every split, in thousandths.
    pub const ALL: u32 = 1000;

    /// A plan that stores and reads every split.
    pub fn whole(hint: &str, prefix: Fingerprint, encoding: Encoding) -> Self {
        Self {
            hint: hint.to_string(),
            prefix,
            put: true,
            encoding,
            permille: Self::ALL,
            set: None,
            set_only: false,
            write_bytes_per_s: None,
            save: None,
        }
    }

    /// A fraction from 0 to 1 in thousandths.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
    pub fn permille_of(fraction: f64) -> u32 {
        (fraction.clamp(0.0, 1.0) * f64::from(Self::ALL)).round() as u32
    }

    /// Whether a split without a part is stored.
    pub fn stores(&self, key: SplitKey) -> bool {
        self.put && self.covers(key)
    }

    /// Whether a split is among those that are stored, as far as its key is concerned.
    pub fn covers(&self, key: SplitKey) -> bool {
        key.folded() % u64::from(Self::ALL) < u64::from(self.permille)
    }

    /// This plan without a set: rows are computed from now on, and drawn as before. A set that can never be complete is not
    /// written any further.
    #[must_use]
    pub fn without_set(mut self) -> Self {
        (self.set, self.set_only) = (None, false);
        self
    }

    /// Whether the rows of all splits come from a stored set, and from nowhere else.
    pub fn reads_set_alone(&self) -> bool {
        self.set_only && matches!(self.set, Some(SetPlan::Read { .. }))
    }

    /// Whether the plan stores every split that has no part.
    pub fn stores_all(&self) -> bool {
        self.put && self.permille == Self::ALL
    }

    /// The plan in a few words for people.
    pub fn describe(&self) -> String {
        if self.permille < Self::ALL {
            let percent = f64::from(self.permille) / 10.0;
            return format!("{percent:.0} % of hint `{}` as {}", self.hint, self.encoding);
        }
        format!("hint `{}` as {}", self.hint, self.encoding)
    }
}

/// How a save stores rows. A split that cannot be stored now is skipped: the driver of the save tries it again in another
/// epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavePlan {
    /// The size of chunks in bytes; absent: a part is one chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<u64>,
}

/// What is known of the set of parts at a hint behind a cross-split stage.
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
        /// The attempt that stored it: a set that is removed and stored again has another one. Empty in journals of versions
        /// that did not say it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        attempt: String,
    },
}

/// A set to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetTarget {
    /// Its folder in the cache.
    pub id: Fingerprint,
    /// The attempt, so that parts of two attempts do not mix.
    pub attempt: String,
    /// The splits that it has to cover.
    pub whole: SplitSetDigest,
}

/// What a set has to cover: the number of splits, and the wrapping sum of their 128-bit names. Two listings with the same
/// splits, each as often, have the same value, whatever their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SplitSetDigest {
    /// The number of splits.
    pub splits: u64,
    /// The wrapping sum of their names.
    #[serde(with = "hex")]
    pub sum: u128,
}

impl SplitSetDigest {
    /// The listing of these names.
    pub fn of(names: impl IntoIterator<Item = u128>) -> Self {
        names
            .into_iter()
            .fold(Self::default(), |w, name| Self { splits: w.splits + 1, sum: w.sum.wrapping_add(name) })
    }
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
    /// The number of splits that the part covers. Their leases come one after another.
    pub of: u32,
    /// The number of rows of the split's split-local output, if the record of the set says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
}

/// The folder of the set that a hint of this base has for a listing.
pub fn set_id(base: Fingerprint, whole: SplitSetDigest) -> Fingerprint {
    Fingerprint(hash128(format!("caju.set/v1 {base} {} {:032x}", whole.splits, whole.sum).as_bytes()))
}

/// How many splits were computed, stored, and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitModes {
    /// Computed, not stored.
    pub compute: u64,
    /// Computed and stored.
    pub put: u64,
    /// Read from a snapshot.
    pub get: u64,
    /// Of the computed splits: those whose storing was begun and abandoned.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fell_back: u64,
    /// Of the stored splits: those that began before the decision and were stored from the backfill buffer.
    #[serde(default, rename = "kept", skip_serializing_if = "is_zero")]
    pub backfilled: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl SplitModes {
    /// All splits.
    pub fn total(&self) -> u64 {
        self.compute + self.put + self.get
    }
}

impl std::ops::AddAssign for SplitModes {
    fn add_assign(&mut self, other: Self) {
        self.compute += other.compute;
        self.put += other.put;
        self.get += other.get;
        self.fell_back += other.fell_back;
        self.backfilled += other.backfilled;
    }
}

/// A 128-bit number as 32 hexadecimal digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(n: &u128, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{n:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u128, D::Error> {
        let text = String::deserialize(d)?;
        u128::from_str_radix(&text, 16).map_err(de::Error::custom)
    }
}
