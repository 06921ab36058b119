//! Rows that clients acknowledged: what their users took, of splits that are not done.
//!
//! Clients send them again to a dispatcher that was restarted. They are part of the state nevertheless, because a client may
//! die before it can do so: what its user had taken is known from here alone.

use std::collections::BTreeMap;

use caju_types::{ClientId, RowRanges, RowSet};
use serde::{Deserialize, Serialize};

use super::Iteration;

/// Rows of a range that are kept as bits: a range of this length takes 65 words at most. Longer ranges are kept as ranges.
/// Short ones become many where rows are shuffled, and bits of neighbours share words.
const SHORT_RANGE: u64 = 4096;

/// Rows of one split: long ranges, and bits for the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgedRows {
    #[serde(default, skip_serializing_if = "RowRanges::is_empty")]
    long: RowRanges,
    #[serde(default, skip_serializing_if = "RowSet::is_empty")]
    short: RowSet,
}

impl FromIterator<(u64, u64)> for AcknowledgedRows {
    /// Takes ranges in any order, in `n log n` time.
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(ranges: I) -> Self {
        let (long, short): (Vec<_>, Vec<_>) = ranges.into_iter().partition(is_long);
        let mut out = Self { long: long.into_iter().collect(), short: RowSet::default() };
        short.into_iter().for_each(|(start, end)| out.short.insert(start, end));
        out
    }
}

fn is_long((start, end): &(u64, u64)) -> bool {
    end.saturating_sub(*start) > SHORT_RANGE
}

impl AcknowledgedRows {
    /// Adds `start..end`.
    fn insert(&mut self, start: u64, end: u64) {
        match is_long(&(start, end)) {
            true => self.long.insert(start, end),
            false => self.short.insert(start, end),
        }
    }

    /// Adds the rows of one word: bit `i` of `bits` is row `64 * word + i`.
    pub fn insert_word(&mut self, word: u64, bits: u64) {
        self.short.insert_word(word, bits);
    }

    /// Adds every row of another set.
    pub fn extend(&mut self, other: &Self) {
        self.long.extend(&other.long);
        let ((start, end), words) = other.short.parts();
        self.insert(start, end);
        words.for_each(|(word, bits)| self.short.insert_word(word, bits));
    }

    /// Whether every row of another set is in this one. It takes time in proportion to the other set. A set that has the same
    /// rows in another form may be taken for one that has not.
    pub fn covers(&self, other: &Self) -> bool {
        let has = |(start, end)| self.long.missing_in(start, end).is_empty();
        other.long.iter().all(has) && self.short.covers(&other.short)
    }

    /// The rows as ranges.
    pub fn ranges(&self) -> RowRanges {
        let mut all = self.short.ranges();
        all.extend(&self.long);
        all
    }

    /// How many rows it has, or more where it has rows as a range and as bits.
    pub fn most_rows(&self) -> u64 {
        self.long.len().saturating_add(self.short.len())
    }

    /// Ranges and words: the size in memory, in units of about 24 bytes.
    pub fn entries(&self) -> usize {
        self.long.iter().count() + self.short.num_words()
    }
}

/// What one client acknowledged of splits that are not done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// Elements that its user had taken of the epoch at its last acknowledgement.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub elements: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    splits: BTreeMap<u64, AcknowledgedRows>,
    /// Ranges and words in `splits`.
    #[serde(default, skip_serializing_if = "super::is_default")]
    entries: usize,
}

impl Acknowledged {
    /// The rows of a split.
    pub fn of(&self, split: u64) -> RowRanges {
        self.splits.get(&split).map(AcknowledgedRows::ranges).unwrap_or_default()
    }

    /// About how many rows of a split it has: never too few.
    pub fn most_rows_of(&self, split: u64) -> u64 {
        self.splits.get(&split).map_or(0, AcknowledgedRows::most_rows)
    }

    /// The rows of each split that is not done.
    pub fn splits(&self) -> impl Iterator<Item = (u64, RowRanges)> + '_ {
        self.splits.iter().map(|(split, rows)| (*split, rows.ranges()))
    }

    /// Rows in all splits that are not done.
    pub fn total(&self) -> u64 {
        self.splits.values().fold(0, |sum: u64, rows| sum.saturating_add(rows.ranges().len()))
    }

    /// Ranges and words in all splits.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Whether these rows of a split are known to be acknowledged.
    pub fn covers(&self, split: u64, rows: &AcknowledgedRows) -> bool {
        self.splits.get(&split).is_some_and(|known| known.covers(rows))
    }

    /// Adds rows.
    pub(crate) fn add(&mut self, rows: &[(u64, AcknowledgedRows)], elements: u64) {
        self.elements = self.elements.max(elements);
        for (split, rows) in rows {
            let known = self.splits.entry(*split).or_default();
            let before = known.entries();
            known.extend(rows);
            self.entries = (self.entries + known.entries()).saturating_sub(before);
        }
    }

    /// Forgets the rows of a split that is done.
    pub(crate) fn forget(&mut self, split: u64) {
        if let Some(rows) = self.splits.remove(&split) {
            self.entries = self.entries.saturating_sub(rows.entries());
        }
    }
}

impl Iteration {
    /// What a client acknowledged of splits that are not done.
    pub fn acknowledged_by(&self, client: ClientId) -> Option<&Acknowledged> {
        self.acknowledged.get(&client)
    }

    /// Rows of a split that users took, by what present clients acknowledged.
    pub(super) fn acknowledged_rows(&self, split: u64) -> u64 {
        let mut taken = RowRanges::default();
        self.acknowledged.values().for_each(|known| taken.extend(&known.of(split)));
        taken.len()
    }

    /// A client acknowledges rows. Nobody waits for this change alone, so the version stays.
    pub(super) fn acknowledge(&mut self, client: ClientId, rows: &[(u64, AcknowledgedRows)], elements: u64) {
        if self.members.contains_key(&client) {
            self.acknowledged.entry(client).or_default().add(rows, elements);
        }
    }

    /// Splits are done: what was acknowledged of them is compared, and forgotten.
    pub(super) fn forget_acknowledged<'a>(&mut self, splits: impl Iterator<Item = &'a u64>) {
        for split in splits {
            self.acknowledged.values_mut().for_each(|known| known.forget(*split));
        }
    }
}
