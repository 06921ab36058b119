//! A set of row numbers that is fast for insertions in any order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ranges::RowRanges;

/// A set of row ordinals of one split. It is fast for rows in order and for shuffled rows.
///
/// Rows that continue the range `head` extend it. Other rows are bits, which are merged into the head when it reaches them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSet {
    head: (u64, u64),
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    words: BTreeMap<u64, u64>,
}

fn mask(from: u64, to: u64) -> u64 {
    // Bits from..to of a word, 0 <= from < to <= 64.
    let high = if to == 64 { u64::MAX } else { (1 << to) - 1 };
    high & !((1 << from) - 1)
}

impl RowSet {
    /// Adds `start..end`.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if self.head.0 == self.head.1 {
            self.head = (start, end);
        } else if start == self.head.1 {
            self.head.1 = end;
        } else {
            for (word, bits) in words(start, end) {
                *self.words.entry(word).or_default() |= bits;
            }
        }
        self.extend_head();
    }

    /// Merges bits that follow the head into it.
    fn extend_head(&mut self) {
        while let Some(bits) = self.words.get(&(self.head.1 / 64)) {
            let (word, at) = (self.head.1 / 64, self.head.1 % 64);
            let n = u64::from((!(bits >> at)).trailing_zeros()).min(64 - at);
            if n == 0 {
                return;
            }
            let left = bits & !mask(at, at + n);
            if left == 0 {
                self.words.remove(&word);
            } else {
                self.words.insert(word, left);
            }
            self.head.1 += n;
            if at + n < 64 {
                return;
            }
        }
    }

    /// Whether any row of `start..end` is in the set.
    pub fn intersects(&self, start: u64, end: u64) -> bool {
        if start >= end {
            return false;
        }
        let (s, e) = self.head;
        if s < e && start < e && s < end {
            return true;
        }
        let (first, last) = (start / 64, (end - 1) / 64);
        self.words.range(first..=last).any(|(&word, &bits)| {
            let (from, to) = (start.max(word * 64) - word * 64, end.min(word * 64 + 64) - word * 64);
            from < to && bits & mask(from, to) != 0
        })
    }

    /// The set as ranges.
    pub fn ranges(&self) -> RowRanges {
        let mut out = RowRanges::default();
        for (&word, &bits) in &self.words {
            let (mut bits, mut at) = (bits, word * 64);
            while bits != 0 {
                let skip = u64::from(bits.trailing_zeros());
                at += skip;
                bits >>= skip;
                let n = u64::from((!bits).trailing_zeros());
                out.insert(at, at + n);
                at += n;
                bits = if n == 64 { 0 } else { bits >> n };
            }
        }
        out.insert(self.head.0, self.head.1);
        out
    }

    /// Adds every row of another set.
    pub fn extend(&mut self, other: &RowSet) {
        for (s, e) in other.ranges().iter() {
            for (a, b) in self.missing_in(s, e) {
                self.insert(a, b);
            }
        }
    }

    /// The number of rows in the set.
    pub fn len(&self) -> u64 {
        self.ranges().len()
    }

    /// Words of 64 rows that the set holds besides its first range: its size in memory, in units of about 24 bytes.
    pub fn num_words(&self) -> usize {
        self.words.len()
    }

    /// Whether the set has no rows.
    pub fn is_empty(&self) -> bool {
        self.head.0 == self.head.1 && self.words.is_empty()
    }

    /// The set in its compact form: one range, and words of 64 rows each by their number. Messages carry this form.
    pub fn parts(&self) -> ((u64, u64), impl Iterator<Item = (u64, u64)> + '_) {
        (self.head, self.words.iter().map(|(word, bits)| (*word, *bits)))
    }

    /// Adds the rows of one word: bit `i` of `bits` is row `64 * word + i`.
    pub fn insert_word(&mut self, word: u64, bits: u64) {
        let word = word.min(u64::MAX / 64 - 1);
        if bits != 0 {
            *self.words.entry(word).or_default() |= bits;
            self.extend_head();
        }
    }

    /// Whether every row of another set is in this one. It takes time in proportion to the other set.
    pub fn covers(&self, other: &RowSet) -> bool {
        let (start, end) = other.head;
        let is_in_head = start >= end || start >= self.head.0 && end <= self.head.1;
        let has = |(word, bits): (u64, u64)| self.word(word) & bits == bits;
        (is_in_head || words(start, end).all(has))
            && other.words.iter().all(|(word, bits)| has((*word, *bits)))
    }

    /// The rows of one word: bit `i` is row `64 * word + i`.
    fn word(&self, word: u64) -> u64 {
        let first = word.saturating_mul(64);
        let (from, to) = (self.head.0.max(first), self.head.1.min(first.saturating_add(64)));
        let of_head = if from < to { mask(from - first, to - first) } else { 0 };
        of_head | self.words.get(&word).copied().unwrap_or_default()
    }

    /// The parts of `start..end` that are not in the set.
    pub fn missing_in(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if self.intersects(start, end) { self.ranges().missing_in(start, end) } else { vec![(start, end)] }
    }
}

fn words(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (start / 64..=(end - 1) / 64).map(move |word| {
        let base = word * 64;
        (word, mask(start.max(base) - base, (end - base).min(64)))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_covers_what_is_in_it(
            own in prop::collection::vec((0u64..400, 0u64..150), 0..8),
            other in prop::collection::vec((0u64..400, 0u64..90), 0..4),
        ) {
            let set = |ranges: &[(u64, u64)]| {
                let mut set = RowSet::default();
                ranges.iter().for_each(|(start, len)| set.insert(*start, start + len));
                set
            };
            let (own, other) = (set(&own), set(&other));
            let mut outside = other.ranges();
            outside.subtract(&own.ranges());
            prop_assert_eq!(own.covers(&other), outside.is_empty());
        }

        #[test]
        fn a_row_set_is_a_set(ops in prop::collection::vec((0u64..400, 0u64..150), 0..40), q in (0u64..500, 0u64..100)) {
            let (mut set, mut model) = (RowSet::default(), BTreeSet::new());
            for (s, n) in ops {
                // Callers insert what is missing only.
                for (a, b) in set.missing_in(s, s + n) {
                    set.insert(a, b);
                }
                model.extend(s..s + n);
                let ranges = set.ranges();
                prop_assert_eq!(ranges.len(), model.len() as u64);
            }
            prop_assert_eq!(set.ranges(), model.iter().map(|&i| (i, i + 1)).collect::<RowRanges>());
            prop_assert_eq!(set.intersects(q.0, q.0 + q.1), (q.0..q.0 + q.1).any(|i| model.contains(&i)));
        }

        #[test]
        fn a_row_set_survives_its_compact_form(ops in prop::collection::vec((0u64..400, 1u64..150), 0..40)) {
            let mut set = RowSet::default();
            for (s, n) in ops {
                for (a, b) in set.missing_in(s, s + n) {
                    set.insert(a, b);
                }
            }
            let (head, words) = set.parts();
            let mut back = RowSet::default();
            back.insert(head.0, head.1);
            words.for_each(|(word, bits)| back.insert_word(word, bits));
            prop_assert_eq!(back.ranges(), set.ranges());
        }
    }
}
