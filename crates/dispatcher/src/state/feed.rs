//! A feed: one row of splits, with what was issued and what came back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use caju_autocache::GroupLease;
use caju_types::{
    ClientId, Listed, RowRanges, RowSet, WorkerId, feed_and_position, hash128, mix64, split_index,
};
use serde::{Deserialize, Serialize};

/// Which row of splits of an iteration: one for all workers under `dynamic`, one per worker slot under `off`, one per
/// shard in a static mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeedId(pub u32);

impl FeedId {
    /// The one feed of an iteration under `dynamic`.
    pub const SHARED: FeedId = FeedId(0);

    /// The index of the split at `position` of this feed's order; unique in the iteration.
    pub fn index(self, position: u64) -> u64 {
        split_index(self.0, position)
    }

    /// The feed that a split's index belongs to.
    pub fn of_index(index: u64) -> FeedId {
        FeedId(feed_and_position(index).0)
    }
}

impl fmt::Display for FeedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "feed-{}", self.0)
    }
}

/// A split as it was listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// Its position in the order of its feed, which is that of the epoch; the feed's number is in the upper bits.
    pub index: u64,
    /// The engine's description of it, in JSON.
    pub split: Arc<str>,
    /// The part of a set that has its rows, as the engine describes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Arc<str>>,
    /// The number of splits that were issued with this one, and their rolling hash; absent if it follows the last one that was
    /// issued. Splits before it were skipped, because all their rows were taken before the iteration began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<(u64, u64)>,
    /// With the first split of a feed that is issued in another order than that of the indexes: the whole listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Listed>,
}

/// One row of splits, as far as they were issued. The provider knows those that are still to be listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feed {
    /// Splits ever leased for the first time: after a restart the provider skips this number.
    pub issued: u64,
    /// A rolling hash of them in the order of issue: after a restart a fresh listing must agree with it.
    pub digest: u64,
    /// The sum of their hashes: equal for the same splits in any order. A split's hash includes the versions of its files.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub content: u64,
    /// The provider has no further split.
    pub exhausted: bool,
    /// The only task of this feed ended without needing its remaining splits (`take`).
    pub closed: bool,
    /// In a static mode, once it is exhausted: a hash of the listing of the whole source. Shards of an epoch agree on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<u64>,
    /// Splits that came back from lost tasks, or that were set aside.
    pub pending: BTreeMap<u64, Lease>,
    /// Splits were issued in another order than that of their indexes: the hash is not that of a listing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scattered: bool,
    /// The positions of the splits that were issued, where that is not the order of their indexes. One range once all are issued.
    #[serde(default, skip_serializing_if = "RowSet::is_empty")]
    pub positions: RowSet,
    /// The whole listing in the order of the indexes, where it was known before the first split was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Listed>,
}

impl Feed {
    /// Whether some split may still have to be leased.
    pub fn has_work(&self) -> bool {
        !self.closed && (!self.exhausted || !self.pending.is_empty())
    }

    /// How far it is listed, in the order of the indexes, for states of readers. None if its splits are issued in another order,
    /// and an older dispatcher began to issue them.
    pub fn listed(&self) -> Option<Listed> {
        let issued = Listed { count: self.issued, digest: self.digest };
        self.whole.or((!self.scattered).then_some(issued))
    }

    /// Splits that wait, in the order in which they are leased again: at most `want`, or all of one part of a set. Parts come in
    /// the order in which they were issued, because stages below may count their rows.
    pub fn waiting(&self, want: usize) -> Vec<u64> {
        if self.pending.values().next().is_none_or(|lease| lease.group.is_none()) {
            return self.pending.keys().take(want).copied().collect();
        }
        let in_parts = || self.pending.iter().filter(|(_, lease)| lease.group.is_some());
        let Some((_, first)) = in_parts().min_by_key(|(_, lease)| lease.issued) else { return Vec::new() };
        let part: Option<GroupLease> =
            first.group.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let left = part.map_or(1, |part| u64::from(part.of.saturating_sub(part.at)));
        let end = first.issued.saturating_add(left);
        let of_part = in_parts().filter(|(_, lease)| lease.issued < end);
        let mut of_part: Vec<(u64, u64)> = of_part.map(|(index, lease)| (lease.issued, *index)).collect();
        of_part.sort_unstable();
        of_part.into_iter().map(|(_, index)| index).collect()
    }

    /// The positions of the splits that were issued. None if they were issued in another order than that of their indexes, and an
    /// older dispatcher, which did not record the positions, issued some of them.
    pub fn issued_positions(&self) -> Option<RowRanges> {
        // A set that a `take` cut has a part of the splits: then an exhausted feed has issued fewer than there are.
        let are_all = self.exhausted && self.whole.is_some_and(|whole| whole.count == self.issued);
        if !self.scattered || are_all {
            return Some(std::iter::once((0, self.issued)).collect());
        }
        Some(self.positions.ranges()).filter(|positions| positions.len() == self.issued)
    }

    pub(super) fn issue(&mut self, record: &SplitRecord) {
        let before = self.issued;
        // A feed of an older journal, some of whose splits were issued before sums were kept, has none.
        if self.issued == 0 || self.content != 0 {
            self.content = self.content.wrapping_add(next_digest(0, &record.split));
        }
        (self.issued, self.digest) =
            record.after.unwrap_or_else(|| (self.issued + 1, next_digest(self.digest, &record.split)));
        self.whole = self.whole.or(record.whole);
        let (_, position) = feed_and_position(record.index);
        if !self.scattered && position + 1 != self.issued {
            self.scattered = true;
            self.positions.insert(0, before);
        }
        if self.scattered {
            self.positions.insert(position, position + 1);
        }
    }
}

/// Whether a sum of hashes is that of no split, or of splits that were issued before sums were kept.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde")]
fn is_unknown(content: &u64) -> bool {
    *content == 0
}

/// The rolling hash of issued splits after one more.
pub fn next_digest(digest: u64, split: &str) -> u64 {
    let hash = hash128(split.as_bytes());
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a hash")]
    let (hi, lo) = ((hash >> 64) as u64, hash as u64);
    mix64(mix64(digest, hi), lo)
}

/// A split that is with a task, or waits for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The engine's description of it, in JSON.
    pub split: Arc<str>,
    /// Rows of its split-local output that clients already have, from earlier attempts.
    #[serde(default, skip_serializing_if = "RowRanges::is_empty")]
    pub done: RowRanges,
    /// How many rows its split-local output has, as far as is known: a task that was lost later had emitted all of them. It is too
    /// low where clients have given rows back since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// How many rows its split-local output has, by its readers, whose users have taken all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How often it was lost.
    #[serde(default)]
    pub lost: u32,
    /// The workers that it was lost with, by incarnation, without those that drained or left.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lost_with: BTreeSet<(WorkerId, u32)>,
    /// Rows of `done` that present clients received from lost tasks. Their users may not have taken them yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<ClientId, RowRanges>,
    /// It was taken over from a straggler.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_over: bool,
    /// Which of the iteration's plans it was first leased under: the first ones are superseded.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub plan: usize,
    /// The part of a set that has its rows. What comes back from a lost task is computed, unless its rows come from the set alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Arc<str>>,
    /// With a part of a set: how many splits of the feed had been issued with this one. The splits of a part are issued one after
    /// another.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub issued: u64,
}
