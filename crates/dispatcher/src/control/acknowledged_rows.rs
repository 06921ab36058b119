//! Rows that the users of clients took, as clients acknowledge them.
//!
//! Messages come from any process that has joined an epoch. They are checked and put in order before the state is locked
//! ([`Reported`]), and only rows of splits that are leased, or wait to be leased again, are kept.

use std::collections::HashMap;

use caju_proto::v1;
use caju_types::{Error, Result, RowRanges, RowSet, format_count};

use super::holders::Holders;
use crate::state::{Iteration, TaskState};

/// The largest row number of a split, exclusive. 2^48 rows are more than any source has, and the sum of 65,536 such
/// splits fits 64 bits.
const MAX_ROW: u64 = 1 << 48;
/// Rows of a range that are kept as bits: a range of this length takes 65 words at most. Longer ranges are kept as ranges.
/// Short ones become many where rows are shuffled, and bits of neighbours share words.
const SHORT_RANGE: u64 = 4096;
/// Ranges and words that one client may have acknowledged of splits that are not done. A word is 64 rows, so these are
/// 268 million rows in any order, in at most about 100 MiB.
const MAX_ENTRIES: usize = 1 << 22;

/// Splits of one message that are looked up one by one, however many are leased.
const FEW_SPLITS: usize = 4096;

/// Rows of one split: long ranges, and bits for the others.
#[derive(Debug, Default)]
struct Rows {
    long: RowRanges,
    short: RowSet,
}

impl Rows {
    /// The rows of a message.
    fn of(rows: &v1::SplitRows) -> Result<Self> {
        check(rows)?;
        let is_long = |r: &v1::RowRange| r.end.saturating_sub(r.start) > SHORT_RANGE;
        let long = rows.rows.iter().filter(|r| is_long(r)).map(|r| (r.start, r.end)).collect();
        let mut short = RowSet::default();
        rows.rows.iter().filter(|r| !is_long(r)).for_each(|r| short.insert(r.start, r.end));
        rows.words.iter().zip(&rows.bits).for_each(|(word, bits)| short.insert_word(*word, *bits));
        Ok(Self { long, short })
    }

    fn add(&mut self, other: &Rows) {
        self.long.extend(&other.long);
        let ((start, end), words) = other.short.parts();
        if end.saturating_sub(start) > SHORT_RANGE {
            self.long.insert(start, end);
        } else {
            self.short.insert(start, end);
        }
        words.for_each(|(word, bits)| self.short.insert_word(word, bits));
    }

    fn ranges(&self) -> RowRanges {
        let mut all = self.short.ranges();
        all.extend(&self.long);
        all
    }

    fn entries(&self) -> usize {
        self.long.iter().count() + self.short.num_words()
    }
}

/// Whether ranges and words of a message can be rows.
fn check(rows: &v1::SplitRows) -> Result<()> {
    let split = rows.split_index;
    if let Some(odd) = rows.rows.iter().find(|r| r.start > r.end || r.end > MAX_ROW) {
        let (start, end) = (odd.start, odd.end);
        return Err(Error::invalid(format!("rows {start}..{end} of split {split} are no range below 2^48")));
    }
    if rows.words.len() != rows.bits.len() || rows.words.iter().any(|w| *w >= MAX_ROW / 64) {
        return Err(Error::invalid(format!("the words and bits of split {split} are no rows below 2^48")));
    }
    Ok(())
}

/// The rows of a message as ranges.
///
/// # Errors
/// `InvalidArgument` if they are no rows.
pub(super) fn rows_of(rows: &v1::SplitRows) -> Result<(u64, RowRanges)> {
    Ok((rows.split_index, Rows::of(rows)?.ranges()))
}

/// What one heartbeat acknowledges: checked and in order.
#[derive(Debug, Default)]
pub(super) struct Reported {
    splits: HashMap<u64, Rows>,
    /// It is all that the client has acknowledged since the epoch began.
    all: bool,
}

impl Reported {
    /// Reads a heartbeat. This takes time in proportion to its length, so it is not done under a lock.
    ///
    /// # Errors
    /// `InvalidArgument` for what can be no rows.
    pub(super) fn parse(request: &v1::ClientHeartbeatRequest) -> Result<Self> {
        let mut splits: HashMap<u64, Rows> = HashMap::new();
        for rows in &request.acknowledged {
            splits.entry(rows.split_index).or_default().add(&Rows::of(rows)?);
        }
        Ok(Self { splits, all: request.acknowledged_all })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.splits.is_empty() && !self.all
    }

    /// Whether this is all that the client has acknowledged since the epoch began.
    pub(super) fn is_all(&self) -> bool {
        self.all
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.splits.is_empty()
    }

    /// Drops splits that are done or were never handed out. The time it takes is bounded by what the dispatcher handed
    /// out, however many splits the message names.
    pub(super) fn keep_open(&mut self, iteration: &Iteration, holders: &mut Holders) {
        if self.splits.len() <= FEW_SPLITS {
            self.splits.retain(|split, _| holders.is_open(iteration, *split));
            return;
        }
        let open = || iteration.tasks.values().filter(|t| t.state != TaskState::Done);
        let leased: usize = open().map(|t| t.leases.len()).sum();
        let all: usize = leased + iteration.feeds.values().map(|f| f.pending.len()).sum::<usize>();
        if self.splits.len() <= all {
            self.splits.retain(|split, _| holders.is_open(iteration, *split));
            return;
        }
        let leases = open().flat_map(|t| t.leases.keys());
        let known = leases.chain(iteration.feeds.values().flat_map(|f| f.pending.keys()));
        self.splits = known.filter_map(|split| self.splits.remove_entry(split)).collect();
    }
}

/// Rows that the user of one client took, of splits that are not done.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Nothing is missing here: the client joined this process, or has sent all of it again.
    complete: bool,
    splits: HashMap<u64, Rows>,
    /// Ranges and words in `splits`.
    entries: usize,
}

impl Acknowledged {
    /// Those of a client that joins now.
    pub(super) fn complete() -> Self {
        Self { complete: true, ..Self::default() }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn of(&self, split: u64) -> RowRanges {
        self.splits.get(&split).map(Rows::ranges).unwrap_or_default()
    }

    /// The rows of each split that is not done.
    pub(super) fn splits(&self) -> impl Iterator<Item = (u64, RowRanges)> + '_ {
        self.splits.iter().map(|(split, rows)| (*split, rows.ranges()))
    }

    /// Rows in all splits that are not done.
    pub(super) fn total(&self) -> u64 {
        self.splits.values().fold(0, |sum: u64, rows| sum.saturating_add(rows.ranges().len()))
    }

    /// Adds what a heartbeat brings.
    ///
    /// # Errors
    /// `ResourceExhausted` for a client that has acknowledged rows in too many pieces.
    pub(super) fn add(&mut self, reported: &Reported) -> Result<()> {
        if self.entries > MAX_ENTRIES {
            return Err(Error::exhausted(format!(
                "this reader has acknowledged rows of splits that are not done in {} pieces, and {} are the most: read \
                 with a smaller shuffle buffer, or the epoch with more readers",
                format_count(self.entries as u64),
                format_count(MAX_ENTRIES as u64)
            )));
        }
        self.complete |= reported.all;
        for (split, rows) in &reported.splits {
            let known = self.splits.entry(*split).or_default();
            let before = known.entries();
            known.add(rows);
            self.entries = (self.entries + known.entries()).saturating_sub(before);
        }
        Ok(())
    }

    /// Forgets the rows of a split that is done; how many they were.
    pub(super) fn forget(&mut self, split: u64) -> u64 {
        let Some(rows) = self.splits.remove(&split) else { return 0 };
        self.entries = self.entries.saturating_sub(rows.entries());
        rows.ranges().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(split_index: u64, rows: &[(u64, u64)]) -> v1::SplitRows {
        let rows = rows.iter().map(|&(start, end)| v1::RowRange { start, end }).collect();
        v1::SplitRows { split_index, rows, ..Default::default() }
    }

    fn reported(acknowledged: Vec<v1::SplitRows>) -> Result<Reported> {
        Reported::parse(&v1::ClientHeartbeatRequest { acknowledged, ..Default::default() })
    }

    #[test]
    fn rows_may_come_in_any_order_and_twice() {
        let mut known = Acknowledged::complete();
        let parts: [&[(u64, u64)]; 4] =
            [&[(10_000, 30_000)], &[(40, 60), (0, 20)], &[(20, 45), (9_999, 10_001)], &[(20_000, 50_000)]];
        for part in parts {
            known.add(&reported(vec![message(3, part)]).unwrap()).unwrap();
        }
        let shuffled = v1::SplitRows { words: vec![1], bits: vec![0b11], ..message(3, &[]) };
        known.add(&reported(vec![shuffled]).unwrap()).unwrap();
        assert_eq!(known.of(3).iter().collect::<Vec<_>>(), [(0, 60), (64, 66), (9_999, 50_000)]);
        assert_eq!(known.total(), 60 + 2 + 40_001);
        assert_eq!((known.forget(3), known.total(), known.entries), (40_063, 0, 0));
    }

    #[test]
    fn what_can_be_no_rows_is_refused() {
        let words = v1::SplitRows { words: vec![MAX_ROW / 64], bits: vec![1], ..message(0, &[]) };
        let uneven = v1::SplitRows { words: vec![1, 2], bits: vec![1], ..message(0, &[]) };
        for bad in [message(0, &[(2, 1)]), message(0, &[(0, u64::MAX)]), words, uneven] {
            let e = reported(vec![bad.clone()]).unwrap_err();
            assert!(e.message().contains("2^48"), "{e}");
            assert!(rows_of(&bad).is_err());
        }
    }

    #[test]
    fn one_client_cannot_make_the_dispatcher_remember_without_bound() {
        let mut known = Acknowledged::complete();
        let scattered = |from: u64| {
            let words: Vec<u64> = (from..from + (1 << 20)).map(|w| 2 * w + 1).collect();
            let bits = vec![1; words.len()];
            v1::SplitRows { words, bits, ..message(0, &[]) }
        };
        let refused = (0..8).find_map(|n| known.add(&reported(vec![scattered(n << 20)]).unwrap()).err());
        let e = refused.expect("eight million words are accepted");
        assert!(e.message().contains("smaller shuffle buffer"), "{e}");
        assert!(known.entries <= MAX_ENTRIES + (1 << 20));
    }
}
