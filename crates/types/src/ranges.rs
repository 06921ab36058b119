//! Sets of row numbers as sorted, disjoint, half-open ranges.

use serde::{Deserialize, Serialize};

/// Up to this number of ranges are inserted one by one: that is cheaper than copying a large set.
const MAX_SINGLE_INSERTS: usize = 8;

/// A set of row ordinals of one split. Acknowledgements and reader states consist of such sets.
///
/// ```
/// let mut r = caju_types::RowRanges::default();
/// r.insert(0, 4);
/// r.insert(6, 8);
/// r.insert(4, 6);
/// assert_eq!(r.iter().collect::<Vec<_>>(), vec![(0, 8)]);
/// assert_eq!(r.len(), 8);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RowRanges {
    ranges: Vec<(u64, u64)>,
}

impl RowRanges {
    /// Adds `start..end`. Overlapping and adjacent ranges are merged.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        // Fast path: rows of a split mostly arrive in order.
        if let Some(last) = self.ranges.last_mut() {
            if last.1 == start {
                last.1 = end;
                return;
            }
            if last.1 < start {
                self.ranges.push((start, end));
                return;
            }
        } else {
            self.ranges.push((start, end));
            return;
        }
        let lo = self.ranges.partition_point(|r| r.1 < start);
        let hi = self.ranges.partition_point(|r| r.0 <= end);
        let (mut s, mut e) = (start, end);
        if lo < hi {
            s = s.min(self.ranges[lo].0);
            e = e.max(self.ranges[hi - 1].1);
        }
        self.ranges.splice(lo..hi, [(s, e)]);
    }

    /// Adds every row of another set, in time that is linear in the ranges of both.
    pub fn extend(&mut self, other: &RowRanges) {
        if other.ranges.len() <= MAX_SINGLE_INSERTS {
            other.iter().for_each(|(start, end)| self.insert(start, end));
            return;
        }
        let mine = std::mem::take(&mut self.ranges);
        self.ranges.reserve(mine.len() + other.ranges.len());
        let (mut mine, mut theirs) = (mine.into_iter().peekable(), other.iter().peekable());
        loop {
            let next = match (mine.peek(), theirs.peek()) {
                (Some(a), Some(b)) if a.0 <= b.0 => mine.next(),
                (_, Some(_)) => theirs.next(),
                (_, None) => mine.next(),
            };
            let Some((start, end)) = next else { return };
            self.append(start, end);
        }
    }

    /// Adds a range that starts at or after the start of every range in the set.
    fn append(&mut self, start: u64, end: u64) {
        match self.ranges.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => self.ranges.push((start, end)),
        }
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let lo = self.ranges.partition_point(|r| r.1 <= start);
        let hi = self.ranges.partition_point(|r| r.0 < end);
        let Some(cut) = self.ranges.get(lo..hi) else { return };
        let (first, last) = (cut.first().map(|r| r.0), cut.last().map(|r| r.1));
        let before = first.filter(|s| *s < start).map(|s| (s, start));
        let after = last.filter(|e| *e > end).map(|e| (end, e));
        self.ranges.splice(lo..hi, before.into_iter().chain(after));
    }

    /// Removes every row of another set, in time that is linear in the ranges of both.
    pub fn subtract(&mut self, other: &RowRanges) {
        if other.ranges.len() <= MAX_SINGLE_INSERTS {
            other.iter().for_each(|(start, end)| self.remove(start, end));
            return;
        }
        let mine = std::mem::take(&mut self.ranges);
        let mut theirs = other.iter().peekable();
        for (mut start, end) in mine {
            while theirs.next_if(|t| t.1 <= start).is_some() {}
            while let Some(&(from, to)) = theirs.peek()
                && from < end
                && start < end
            {
                if start < from {
                    self.ranges.push((start, from));
                }
                start = start.max(to);
                if to <= end {
                    theirs.next();
                }
            }
            if start < end {
                self.ranges.push((start, end));
            }
        }
    }

    /// Whether the row is in the set.
    pub fn contains(&self, row: u64) -> bool {
        let i = self.ranges.partition_point(|r| r.1 <= row);
        self.ranges.get(i).is_some_and(|r| r.0 <= row)
    }

    /// Whether any row of `start..end` is in the set.
    pub fn intersects(&self, start: u64, end: u64) -> bool {
        let i = self.ranges.partition_point(|r| r.1 <= start);
        start < end && self.ranges.get(i).is_some_and(|r| r.0 < end)
    }

    /// The parts of `start..end` that are not in the set, in order.
    pub fn missing_in(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let mut at = start;
        let first = self.ranges.partition_point(|r| r.1 <= start);
        for &(s, e) in &self.ranges[first..] {
            if s >= end || at >= end {
                break;
            }
            if s > at {
                out.push((at, s));
            }
            at = at.max(e);
        }
        if at < end {
            out.push((at, end));
        }
        out
    }

    /// The number of rows in the set. It never wraps: the ranges are disjoint.
    pub fn len(&self) -> u64 {
        self.ranges.iter().fold(0, |sum: u64, r| sum.saturating_add(r.1.saturating_sub(r.0)))
    }

    /// The number of ranges.
    pub fn num_ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Whether the set has no rows.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, sorted and disjoint, as `(start, end)` with `end` excluded.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }
}

impl FromIterator<(u64, u64)> for RowRanges {
    /// Takes ranges in any order, in `n log n` time. Empty and reversed ranges have no rows.
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(iter: I) -> Self {
        let mut ranges: Vec<(u64, u64)> = iter.into_iter().filter(|(start, end)| start < end).collect();
        if !ranges.is_sorted() {
            ranges.sort_unstable();
        }
        let mut out = Self { ranges: Vec::with_capacity(ranges.len()) };
        ranges.into_iter().for_each(|(start, end)| out.append(start, end));
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set(ops in prop::collection::vec((0u64..60, 0u64..12), 0..40), q in (0u64..60, 0u64..20), others in prop::collection::vec((0u64..60, 0u64..4), 0..30)) {
            let mut set = BTreeSet::new();
            let mut ranges = RowRanges::default();
            for (i, (s, n)) in ops.into_iter().enumerate() {
                if i % 3 == 2 {
                    ranges.remove(s, s + n);
                    set.retain(|r| !(s..s + n).contains(r));
                } else {
                    ranges.insert(s, s + n);
                    set.extend(s..s + n);
                }
            }
            prop_assert_eq!(ranges.len(), set.len() as u64);
            for i in 0..80 {
                prop_assert_eq!(ranges.contains(i), set.contains(&i));
            }
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|w| w[0].1 < w[1].0));
            let others: Vec<(u64, u64)> = others.into_iter().map(|(s, n)| (s, s + n)).collect();
            let other: RowRanges = others.iter().copied().collect();
            let union: BTreeSet<u64> = set.iter().copied().chain(others.iter().flat_map(|&(s, e)| s..e)).collect();
            let mut both = ranges.clone();
            both.extend(&other);
            prop_assert_eq!(&both, &union.iter().map(|&i| (i, i + 1)).collect::<RowRanges>());
            prop_assert_eq!(both.len(), union.len() as u64);
            let mut less = ranges.clone();
            less.subtract(&other);
            let left: RowRanges = set.iter().filter(|&&i| !other.contains(i)).map(|&i| (i, i + 1)).collect();
            prop_assert_eq!(less, left);
            let (s, n) = q;
            let missing: BTreeSet<u64> = ranges.missing_in(s, s + n).into_iter().flat_map(|(a, b)| a..b).collect();
            let want: BTreeSet<u64> = (s..s + n).filter(|i| !set.contains(i)).collect();
            prop_assert_eq!(missing, want);
            prop_assert_eq!(ranges.intersects(s, s + n), (s..s + n).any(|i| set.contains(&i)));
        }
    }

    #[test]
    fn ranges_in_descending_order_do_not_take_quadratic_time() {
        // Inserted one by one at the front these move 500 billion ranges.
        let n = 1_000_000;
        let all: RowRanges = (0..n).rev().map(|i| (2 * i, 2 * i + 1)).collect();
        assert_eq!((all.len(), all.iter().count()), (n, 1_000_000));
        let mut gaps: RowRanges = (0..n).rev().map(|i| (2 * i + 1, 2 * i + 2)).collect();
        gaps.extend(&all);
        assert_eq!(gaps.iter().collect::<Vec<_>>(), [(0, 2 * n)]);
        let huge: RowRanges = [(0, u64::MAX), (7, 7), (9, 3)].into_iter().collect();
        assert_eq!(huge.len(), u64::MAX);
    }
}
