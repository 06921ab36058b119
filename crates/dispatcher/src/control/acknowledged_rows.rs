//! Rows that the users of clients took, as clients acknowledge them.
//!
//! Messages come from any process that has joined an epoch. They are checked and put in order before the state is locked
//! ([`Reported`]), and only rows of splits that are leased, or wait to be leased again, are kept.

use std::collections::HashMap;

use caju_proto::v1;
use caju_types::{Error, Result, RowRanges, format_count};

use super::holders::Holders;
use crate::state::{Acknowledged, AcknowledgedRows, Iteration, TaskState};

/// The largest row number of a split, exclusive. 2^48 rows are more than any source has, and the sum of 65,536 such
/// splits fits 64 bits.
const MAX_ROW: u64 = 1 << 48;
/// Ranges and words that one client may have acknowledged of splits that are not done. A word is 64 rows, so these are
/// 268 million rows in any order, in at most about 100 MiB.
const MAX_ENTRIES: usize = 1 << 22;

/// Splits of one message that are looked up one by one, however many are leased.
const FEW_SPLITS: usize = 4096;

/// The rows of a message.
///
/// # Errors
/// `InvalidArgument` if they are no rows.
fn parse_rows(rows: &v1::SplitRows) -> Result<AcknowledgedRows> {
    check(rows)?;
    let mut out: AcknowledgedRows = rows.rows.iter().map(|r| (r.start, r.end)).collect();
    rows.words.iter().zip(&rows.bits).for_each(|(word, bits)| out.insert_word(*word, *bits));
    Ok(out)
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
    Ok((rows.split_index, parse_rows(rows)?.ranges()))
}

/// What one heartbeat acknowledges: checked and in order.
#[derive(Debug, Default)]
pub(super) struct Reported {
    splits: HashMap<u64, AcknowledgedRows>,
    /// It is all that the client has acknowledged since the epoch began.
    all: bool,
}

impl Reported {
    /// Reads a heartbeat. This takes time in proportion to its length, so it is not done under a lock.
    ///
    /// # Errors
    /// `InvalidArgument` for what can be no rows.
    pub(super) fn parse(request: &v1::ClientHeartbeatRequest) -> Result<Self> {
        let mut splits: HashMap<u64, AcknowledgedRows> = HashMap::new();
        for rows in &request.acknowledged {
            splits.entry(rows.split_index).or_default().extend(&parse_rows(rows)?);
        }
        Ok(Self { splits, all: request.acknowledged_all })
    }

    /// Whether this is all that the client has acknowledged since the epoch began.
    pub(super) fn is_all(&self) -> bool {
        self.all
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.splits.is_empty()
    }

    /// The splits of which it acknowledges rows.
    pub(super) fn splits(&self) -> impl Iterator<Item = u64> + '_ {
        self.splits.keys().copied()
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

    /// What is new to the state, in the order of splits.
    ///
    /// # Errors
    /// `ResourceExhausted` for a client that has acknowledged rows in too many pieces.
    pub(super) fn news(self, known: Option<&Acknowledged>) -> Result<Vec<(u64, AcknowledgedRows)>> {
        if known.is_some_and(|known| known.entries() > MAX_ENTRIES) {
            return Err(Error::exhausted(format!(
                "this reader has acknowledged rows of splits that are not done in {} pieces, and {} are the most: read \
                 with a smaller shuffle buffer, or the epoch with more readers",
                format_count(known.map_or(0, Acknowledged::entries) as u64),
                format_count(MAX_ENTRIES as u64)
            )));
        }
        let is_news =
            |(split, rows): &(u64, AcknowledgedRows)| known.is_none_or(|known| !known.covers(*split, rows));
        let mut news: Vec<(u64, AcknowledgedRows)> = self.splits.into_iter().filter(is_news).collect();
        news.sort_unstable_by_key(|(split, _)| *split);
        Ok(news)
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

    /// Adds what is new in a report, as the state does; the rows of each split that were new.
    fn add(known: &mut Acknowledged, acknowledged: Vec<v1::SplitRows>) -> Result<Vec<u64>> {
        let news = reported(acknowledged)?.news(Some(known))?;
        known.add(&news, 0);
        Ok(news.iter().map(|(split, _)| *split).collect())
    }

    #[test]
    fn rows_may_come_in_any_order_and_twice() {
        let mut known = Acknowledged::default();
        let parts: [&[(u64, u64)]; 4] =
            [&[(10_000, 30_000)], &[(40, 60), (0, 20)], &[(20, 45), (9_999, 10_001)], &[(20_000, 50_000)]];
        for part in parts {
            assert_eq!(add(&mut known, vec![message(3, part)]).unwrap(), [3]);
        }
        let shuffled = v1::SplitRows { words: vec![1], bits: vec![0b11], ..message(3, &[]) };
        assert_eq!(add(&mut known, vec![shuffled.clone()]).unwrap(), [3]);
        assert_eq!(known.of(3).iter().collect::<Vec<_>>(), [(0, 60), (64, 66), (9_999, 50_000)]);
        assert_eq!(known.total(), 60 + 2 + 40_001);
        // What is known is not journaled once more.
        let again = vec![shuffled, message(3, &[(0, 60), (10_000, 50_000)]), message(4, &[(0, 1)])];
        assert_eq!(add(&mut known, again).unwrap(), [4]);
        known.forget(3);
        assert_eq!((known.total(), known.of(3).len()), (1, 0));
        known.forget(4);
        assert_eq!((known.total(), known.entries()), (0, 0));
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
        let mut known = Acknowledged::default();
        let scattered = |from: u64| {
            let words: Vec<u64> = (from..from + (1 << 20)).map(|w| 2 * w + 1).collect();
            let bits = vec![1; words.len()];
            v1::SplitRows { words, bits, ..message(0, &[]) }
        };
        let refused = (0..8).find_map(|n| add(&mut known, vec![scattered(n << 20)]).err());
        let e = refused.expect("eight million words are accepted");
        assert!(e.message().contains("smaller shuffle buffer"), "{e}");
        assert!(known.entries() <= MAX_ENTRIES + (1 << 20));
    }
}
