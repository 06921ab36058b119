//! The rows that the user of a reader got, in the form of its states: counted as they are handed out, so that encoding a
//! state does not visit every split.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caju_proto::{reading_bases, v1};
use caju_types::{EpochDraws, Listed, ReadingBases, Result, RowSet, TakenRows};
use caju_wire::{Run, SplitFacts};
use parking_lot::Mutex;

/// The most feeds of an epoch of which workers say how far they are listed: more than a cluster has workers or shards. A worker
/// that names others each time takes no more memory than this, 2 MiB.
const MAX_FEEDS: usize = 1 << 16;

/// The rows that the user got.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delivered {
    /// What was taken before this reader began.
    before: Option<Arc<TakenRows>>,
    /// Splits of which the user got every row since then.
    whole: TakenRows,
    /// Other splits.
    open: BTreeMap<u64, Open>,
}

/// A split of which the user got rows, or of which the number of rows is known.
#[derive(Debug, Clone, Default)]
struct Open {
    rows: RowSet,
    /// The number of `rows`: each row is handed out once.
    got: u64,
    /// Rows of `before`.
    had: u64,
    /// The split's number of rows.
    all: Option<u64>,
}

impl Delivered {
    /// The reader continues behind these rows.
    pub(crate) fn begin_behind(&mut self, before: Arc<TakenRows>) {
        for (split, open) in &mut self.open {
            open.had = before.rows_of(*split).map_or(0, caju_types::RowRanges::len);
        }
        self.before = Some(before);
    }

    fn open(&mut self, split: u64) -> &mut Open {
        let before = &self.before;
        self.open.entry(split).or_insert_with(|| Open {
            had: before.as_ref().and_then(|b| b.rows_of(split)).map_or(0, caju_types::RowRanges::len),
            ..Open::default()
        })
    }

    /// The user got these rows.
    pub(crate) fn add(&mut self, runs: &[Run]) {
        for run in runs {
            let open = self.open(run.split);
            open.rows.insert(run.start, run.start.saturating_add(run.len));
            open.got += run.len;
            self.close_if_whole(run.split);
        }
    }

    /// The user got the first rows of these.
    pub(crate) fn add_first(&mut self, runs: &[Run], mut rows: u64) {
        for run in runs {
            let len = run.len.min(rows);
            rows -= len;
            if len == 0 {
                return;
            }
            self.add(&[Run { len, ..*run }]);
        }
    }

    /// A copy for a state. Splits of whose rows the user has none are not in it, unless it has some of these in hand: as many rows
    /// as fit may wait behind them.
    pub(crate) fn for_state(&self, in_hand: &[Run]) -> Self {
        let begun = self.open.iter().filter(|(_, open)| open.got > 0);
        let mut open: BTreeMap<u64, Open> = begun.map(|(split, open)| (*split, open.clone())).collect();
        for run in in_hand {
            if let Some(known) = self.open.get(&run.split) {
                open.entry(run.split).or_insert_with(|| known.clone());
            }
        }
        Self { before: self.before.clone(), whole: self.whole.clone(), open }
    }

    /// The numbers of rows of splits.
    pub(crate) fn sized(&mut self, sized: Vec<(u64, u64)>) {
        for (split, rows) in sized {
            if !self.whole.whole().contains(split) {
                self.open(split).all = Some(rows);
                self.close_if_whole(split);
            }
        }
    }

    fn close_if_whole(&mut self, split: u64) {
        let is_whole = self.open.get(&split).is_some_and(|o| o.all == Some(o.got + o.had));
        if is_whole {
            self.open.remove(&split);
            self.whole.add_whole(split);
        }
    }

    /// All rows that were taken of the epoch, as far as this reader knows.
    ///
    /// # Errors
    /// `Internal` if they do not fit what was taken before.
    pub(crate) fn taken(self) -> Result<TakenRows> {
        let mut taken = self.whole;
        for (split, open) in self.open.iter().filter(|(_, open)| open.got > 0) {
            taken.add_rows(*split, &open.rows.ranges());
            if let Some(all) = open.all {
                taken.set_size(*split, all);
            }
        }
        if let Some(before) = &self.before {
            taken.extend(before)?;
        }
        Ok(taken)
    }
}

/// What the dispatcher and the workers say of the epoch, for states.
#[derive(Debug, Default)]
pub(crate) struct EpochFacts {
    inner: Mutex<Facts>,
}

#[derive(Debug, Default)]
struct Facts {
    listed: BTreeMap<u32, Listed>,
    readers: BTreeSet<u64>,
    /// Rows that were taken before the epoch was opened. Dropped once the reader has added them.
    resumed: Option<Arc<TakenRows>>,
    /// Rows that were taken before the epoch was opened, for as long as the reader lives.
    all_resumed: Option<Arc<TakenRows>>,
    knows_resumed: bool,
    /// What users had got when the iteration, and those before it, went on.
    bases: ReadingBases,
    /// The iterations from whose states this one goes on, and those before them.
    readings: BTreeSet<u64>,
    sized: Vec<(u64, u64)>,
    /// Numbers of rows of splits that the session has not read yet.
    sized_for_session: Vec<(u64, u64)>,
    /// The present readers.
    present: BTreeSet<u64>,
    /// Those of them whose users get elements.
    taking: BTreeSet<u64>,
    /// The user of this one does, or is about to.
    takes: bool,
    /// Of a consumer: elements that its user got before the epoch was opened.
    steps: u64,
    /// Readers whose states are missing.
    states_missing: u64,
    /// Of which epoch, and whose they are.
    missing_states: String,
    /// How random stages above hints draw.
    draws: Option<EpochDraws>,
}

impl Facts {
    /// How far a feed is listed, by the dispatcher or by a worker. The longest listing is kept: both may say it late.
    fn set_listed(&mut self, feed: u32, listed: Listed) {
        let known = self.listed.entry(feed).or_insert(listed);
        if known.count < listed.count {
            *known = listed;
        }
    }
}

impl EpochFacts {
    /// What an answer of the dispatcher says.
    ///
    /// # Errors
    /// `InvalidArgument` if it cannot be read.
    pub(crate) fn record(
        &self,
        listed: &[v1::ListedSplits],
        readers: &[u64],
        resumed: &[u8],
        states_missing: u64,
    ) -> Result<()> {
        let mut facts = self.inner.lock();
        for l in listed {
            facts.set_listed(l.feed, Listed { count: l.count, digest: l.digest });
        }
        facts.readers.extend(readers);
        facts.states_missing = states_missing;
        if !resumed.is_empty() && !facts.knows_resumed {
            let resumed = Arc::new(TakenRows::decode(resumed)?);
            facts.all_resumed = Some(Arc::clone(&resumed));
            facts.resumed = Some(resumed);
            facts.knows_resumed = true;
        }
        Ok(())
    }

    /// The iterations from whose states this one goes on, those before them, and what users had got when each went on. The
    /// dispatcher says both once.
    pub(crate) fn set_readings(&self, readings: &[u64], bases: &[v1::ReadingBase]) {
        let mut facts = self.inner.lock();
        facts.readings.extend(readings);
        if !bases.is_empty() {
            facts.bases = reading_bases(bases);
        }
    }

    /// The iterations from whose states this one goes on, and those before them, also where this reader's own state is of another
    /// one than those of the other readers.
    pub(crate) fn readings(&self) -> BTreeSet<u64> {
        self.inner.lock().readings.clone()
    }

    /// What users had got when the iteration went on, and those before it, which a reader of it had got from its state.
    pub(crate) fn bases(&self, of_state: &ReadingBases) -> ReadingBases {
        let mut bases = self.inner.lock().bases.clone();
        bases.extend(of_state);
        bases
    }

    /// Whether what was taken before is known.
    pub(crate) fn knows_resumed(&self) -> bool {
        self.inner.lock().knows_resumed
    }

    /// Readers whose states the epoch waits for.
    pub(crate) fn states_missing(&self) -> u64 {
        self.inner.lock().states_missing
    }

    /// Of which epoch, and whose the missing states are.
    pub(crate) fn set_missing_states(&self, whose: &str) {
        whose.clone_into(&mut self.inner.lock().missing_states);
    }

    /// Of which epoch, and whose the missing states are, as far as the dispatcher says it.
    pub(crate) fn missing_states(&self) -> String {
        self.inner.lock().missing_states.clone()
    }

    pub(crate) fn set_draws(&self, draws: Option<&v1::EpochDraws>) {
        self.inner.lock().draws = draws.map(Into::into);
    }

    /// How random stages above hints draw, as far as the dispatcher says it.
    pub(crate) fn draws(&self) -> Option<EpochDraws> {
        self.inner.lock().draws.clone()
    }

    /// What a worker says of splits. It is added before the user gets rows of them.
    pub(crate) fn add_split_facts(&self, SplitFacts { sized, listed }: SplitFacts) {
        if sized.is_empty() && listed.is_none() {
            return;
        }
        let mut facts = self.inner.lock();
        facts.sized_for_session.extend(&sized);
        facts.sized.extend(sized);
        if let Some((feed, listed)) = listed
            && (facts.listed.len() < MAX_FEEDS || facts.listed.contains_key(&feed))
        {
            facts.set_listed(feed, listed);
        }
    }

    /// The numbers of rows of splits that were received since the last call.
    pub(crate) fn draw_sized(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.inner.lock().sized_for_session)
    }

    /// The present readers, and the elements that the user of a consumer got before the epoch was opened.
    pub(crate) fn set_present(&self, present: &[u64], taking: &[u64], steps: u64) {
        let mut facts = self.inner.lock();
        facts.present = present.iter().copied().collect();
        facts.taking = taking.iter().copied().collect();
        facts.steps = steps;
    }

    /// The user is about to get its first element. Whether other readers exist that have to be notified first. A reader that
    /// this one does not know of yet is notified too: by this one's next report.
    pub(crate) fn begin_taking(&self) -> bool {
        let mut facts = self.inner.lock();
        facts.takes = true;
        facts.present.len() > 1
    }

    /// Whether the user gets elements, or is about to.
    pub(crate) fn takes(&self) -> bool {
        self.inner.lock().takes
    }

    /// Elements that the user of a consumer got before the epoch was opened, by the dispatcher.
    pub(crate) fn steps(&self) -> u64 {
        self.inner.lock().steps
    }

    /// The readers whose taken rows only they know: those that had taken rows, and the present ones.
    pub(crate) fn holders(&self) -> BTreeSet<u64> {
        let facts = self.inner.lock();
        facts.readers.union(&facts.present).copied().collect()
    }

    /// What was taken before the epoch was opened; none while that is not known, or if nothing was.
    pub(crate) fn resumed(&self) -> Option<Arc<TakenRows>> {
        self.inner.lock().all_resumed.clone()
    }

    /// Moves what the dispatcher said to where the rows are counted.
    pub(crate) fn pass_to(&self, delivered: &mut Delivered) {
        let mut facts = self.inner.lock();
        if let Some(resumed) = facts.resumed.take() {
            delivered.begin_behind(resumed);
        }
        let sized = std::mem::take(&mut facts.sized);
        drop(facts);
        delivered.sized(sized);
    }

    /// What was reported, for a copy of where the rows are counted: of splits that it names, and of those without rows.
    pub(crate) fn copy_to(&self, delivered: &mut Delivered) {
        let facts = self.inner.lock();
        let is_named = |(split, rows): &&(u64, u64)| *rows == 0 || delivered.open.contains_key(split);
        let sized = facts.sized.iter().filter(is_named).copied().collect();
        let resumed = facts.resumed.clone();
        drop(facts);
        if let Some(resumed) = resumed {
            delivered.begin_behind(resumed);
        }
        delivered.sized(sized);
    }

    /// The number of readers that had taken rows, as far as this one knows.
    pub(crate) fn num_readers(&self) -> u64 {
        self.inner.lock().readers.len() as u64
    }

    /// Adds the listed splits, and the readers that had taken rows or have some in hand.
    pub(crate) fn listed_and_readers(&self) -> (BTreeMap<u32, Listed>, BTreeSet<u64>) {
        let facts = self.inner.lock();
        (facts.listed.clone(), facts.readers.union(&facts.taking).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(split: u64, start: u64, len: u64) -> Run {
        Run { split, start, len }
    }

    #[test]
    fn the_longest_listing_is_kept_whoever_says_it() {
        let facts = EpochFacts::default();
        let listed = |count| Some((0, Listed { count, digest: 10 * count }));
        let from_worker =
            |count| facts.add_split_facts(SplitFacts { listed: listed(count), ..SplitFacts::default() });
        from_worker(7);
        let from_dispatcher = |count| v1::ListedSplits { feed: 0, count, digest: 10 * count };
        facts.record(&[from_dispatcher(5)], &[], &[], 0).unwrap();
        assert_eq!(facts.listed_and_readers().0, BTreeMap::from_iter(listed(7)), "an answer that came late");
        facts.record(&[from_dispatcher(9)], &[], &[], 0).unwrap();
        from_worker(8);
        assert_eq!(facts.listed_and_readers().0, BTreeMap::from_iter(listed(9)));
    }

    #[test]
    fn a_worker_that_names_a_new_feed_each_time_takes_bounded_memory() {
        let facts = EpochFacts::default();
        let add = |feed, count| {
            let listed = Some((feed, Listed { count, digest: 7 }));
            facts.add_split_facts(SplitFacts { listed, ..SplitFacts::default() });
        };
        let most = u32::try_from(MAX_FEEDS).unwrap();
        (0..most + 9).for_each(|feed| add(feed, 1));
        add(3, 2);
        let (listed, _) = facts.listed_and_readers();
        assert_eq!((listed.len(), listed[&3].count), (MAX_FEEDS, 2));
    }

    #[test]
    fn a_split_is_whole_when_all_its_rows_came_whatever_is_known_first() {
        let mut delivered = Delivered::default();
        delivered.sized(vec![(0, 5), (2, 0)]);
        delivered.add(&[run(0, 0, 3), run(1, 4, 2)]);
        delivered.add_first(&[run(0, 3, 2), run(1, 0, 4), run(9, 0, 9)], 4);
        delivered.sized(vec![(1, 9)]);
        let taken = delivered.taken().unwrap();
        assert_eq!(taken.whole().iter().collect::<Vec<_>>(), [(0, 1), (2, 3)]);
        let rows: Vec<_> = taken.rows().map(|(s, r)| (s, r.iter().collect::<Vec<_>>())).collect();
        assert_eq!(rows, [(1, vec![(0, 2), (4, 6)])]);
    }

    /// Its time does not grow with the rows that wait for the user.
    #[test]
    fn a_state_copies_the_splits_that_the_user_has_rows_of() {
        let (facts, mut delivered) = (EpochFacts::default(), Delivered::default());
        delivered.sized((0..1000).map(|split| (split, 5)).collect());
        delivered.add(&[run(3, 0, 2), run(4, 0, 5)]);
        let sized = (1000..2000).map(|split| (split, 6)).chain([(2000, 0)]).collect();
        facts.add_split_facts(SplitFacts { sized, listed: None });
        let in_hand = [run(3, 2, 1), run(7, 0, 5), run(1500, 0, 6)];
        let mut copy = delivered.for_state(&in_hand);
        copy.add_first(&in_hand, u64::MAX);
        facts.copy_to(&mut copy);
        assert_eq!(copy.open.keys().collect::<Vec<_>>(), [&3]);
        let taken = copy.taken().unwrap();
        assert_eq!(taken.whole().iter().collect::<Vec<_>>(), [(4, 5), (7, 8), (1500, 1501), (2000, 2001)]);
        assert_eq!(taken.rows_of(3).unwrap().iter().collect::<Vec<_>>(), [(0, 3)]);
        assert_eq!(delivered.open.len(), 999, "the reader goes on with all of them");
    }

    #[test]
    fn rows_from_before_count() {
        let mut before = TakenRows::default();
        before.add_whole(0);
        before.add_rows(1, &[(0, 4)].into_iter().collect());
        let mut delivered = Delivered::default();
        delivered.add(&[run(1, 4, 2)]);
        delivered.begin_behind(Arc::new(before));
        delivered.sized(vec![(1, 8), (0, 7)]);
        delivered.add(&[run(1, 6, 2)]);
        assert_eq!(delivered.taken().unwrap().whole().iter().collect::<Vec<_>>(), [(0, 2)]);
    }

    #[test]
    fn a_state_of_one_million_splits_is_small_and_quick() {
        let mut delivered = Delivered::default();
        // Two splits are always half taken.
        for split in 0..1_000_000u64 {
            delivered.sized(vec![(split, 64)]);
            delivered.add(&[run(split, 0, 32)]);
            if let Some(before) = split.checked_sub(2) {
                delivered.add(&[run(before, 32, 32)]);
            }
        }
        let start = std::time::Instant::now();
        let bytes = delivered.taken().unwrap().encode();
        assert!(bytes.len() < 64 << 10, "{} bytes", bytes.len());
        // A debug build on a busy machine has ten times what is promised.
        assert!(start.elapsed() < std::time::Duration::from_millis(50), "{:?}", start.elapsed());
    }
}
