//! Splits of running tasks of which users have taken every row: their leases end, and readers and workers forget them.
//!
//! A worker counts the rows of a split when it has read all of it, and says the number to the readers of these rows. They pass it
//! on with what their users took. None of this is in the journal: after a restart readers say it again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use caju_types::{ClientId, IterationId, RowRanges, TaskId};

use crate::state::{AcknowledgedRows, Iteration, State, Task};

/// Complete splits that are remembered for one client or task until it knows of them: 1 MiB. It keeps what it knows of older
/// ones until their task ends, as clients of older versions do of all.
const MAX_NEWS: usize = 1 << 17;

/// The most complete splits in one answer: 300 KiB. A reader asks a few times a second, and small splits are complete by the ten
/// thousand.
const MAX_LISTED: usize = 1 << 15;

/// What is known of the sizes of splits that are not complete, and who has not been notified of complete ones.
#[derive(Debug, Default)]
pub(super) struct CompletedSplits {
    /// Splits that are not complete and of which readers said something.
    open: BTreeMap<IterationId, HashMap<u64, OpenSplit>>,
    of_clients: BTreeMap<(IterationId, ClientId), News>,
    of_tasks: BTreeMap<TaskId, News>,
    /// Of tasks none of whose splits had a row: the last repetition of the source that they have read splits of.
    empty_repetitions: BTreeMap<TaskId, u32>,
}

/// A split that is not complete.
#[derive(Debug, Default)]
struct OpenSplit {
    /// How many rows it has, by its readers.
    size: Size,
    /// Rows that present clients acknowledged: never too few, since rows that come twice count twice. The rows are compared as sets
    /// when there may be enough of them.
    acknowledged: Option<u64>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Size {
    #[default]
    Unknown,
    Rows(u64),
    /// Readers say different numbers.
    Disputed,
}

/// Complete splits that a client or a task has not been notified of.
#[derive(Debug, Default)]
struct News {
    /// How many were listed before `splits`; none before this process has heard how many its peer knows. That may be of an
    /// earlier process.
    before: Option<u64>,
    splits: VecDeque<u64>,
}

impl News {
    fn push(&mut self, split: u64) {
        if self.splits.len() == MAX_NEWS {
            self.splits.pop_front();
            self.before = self.before.map(|before| before + 1);
        }
        self.splits.push_back(split);
    }

    /// What is listed next to who knows the first `seen`, and how many it knows then.
    fn next(&mut self, seen: u64) -> (Vec<u64>, u64) {
        let before = self.before.unwrap_or(seen);
        if let Ok(known) = usize::try_from(seen.saturating_sub(before)) {
            self.splits.drain(..known.min(self.splits.len()));
        }
        let before = before.max(seen);
        self.before = Some(before);
        let listed: Vec<u64> = self.splits.iter().take(MAX_LISTED).copied().collect();
        let up_to = before.saturating_add(listed.len() as u64);
        (listed, up_to)
    }
}

impl CompletedSplits {
    fn open(&mut self, id: IterationId, split: u64) -> &mut OpenSplit {
        self.open.entry(id).or_default().entry(split).or_default()
    }

    /// A reader says how many rows a split that is not complete has. Whether that was not known.
    pub(super) fn add_size(&mut self, iteration: &Iteration, split: u64, rows: u64) -> bool {
        let size = &mut self.open(iteration.id, split).size;
        match size {
            Size::Unknown => {
                *size = Size::Rows(rows);
                return true;
            }
            Size::Rows(known) if *known != rows => {
                tracing::warn!("{}: readers say different sizes of split {split}", iteration.describe());
                *size = Size::Disputed;
            }
            Size::Rows(_) | Size::Disputed => {}
        }
        false
    }

    /// A client acknowledges rows of splits, which are not in the state yet.
    pub(super) fn acknowledge(&mut self, iteration: &Iteration, rows: &[(u64, AcknowledgedRows)]) {
        for (split, rows) in rows {
            let open = self.open(iteration.id, *split);
            let known = open.acknowledged.unwrap_or_else(|| most_acknowledged(iteration, *split));
            open.acknowledged = Some(known.saturating_add(rows.most_rows()));
        }
    }

    /// How many rows a split has, if users may have taken all of them.
    pub(super) fn size_if_taken(&mut self, iteration: &Iteration, task: &Task, split: u64) -> Option<u64> {
        let lease = task.leases.get(&split)?;
        let open = self.open(iteration.id, split);
        let size = match open.size {
            Size::Rows(size) => size,
            // Readers said it of a task that is lost.
            Size::Unknown => lease.size?,
            Size::Disputed => return None,
        };
        let acknowledged = *open.acknowledged.get_or_insert_with(|| most_acknowledged(iteration, split));
        let done = lease.done.len();
        let received = task.received.get(&split).map_or(0, RowRanges::len);
        (acknowledged.saturating_add(done).saturating_add(received) >= size).then_some(size)
    }

    /// A reader reported rows of a complete split: it does not know that.
    pub(super) fn notify(&mut self, id: IterationId, client: ClientId, split: u64) {
        self.of_clients.entry((id, client)).or_default().push(split);
    }

    /// Splits of a task are complete.
    pub(super) fn complete(&mut self, id: IterationId, task: TaskId, splits: &[u64]) {
        let news = self.of_tasks.entry(task).or_default();
        splits.iter().for_each(|split| news.push(*split));
        if let Some(open) = self.open.get_mut(&id) {
            for split in splits {
                open.remove(split);
            }
        }
    }

    /// A task has read splits of this repetition of the source, and none of its splits had a row.
    pub(super) fn read_empty(&mut self, task: TaskId, repetition: u32) {
        let known = self.empty_repetitions.entry(task).or_default();
        *known = repetition.max(*known);
    }

    /// The last repetition that a task has read splits of, if none of its splits had a row.
    pub(super) fn empty_repetition(&self, task: TaskId) -> u32 {
        self.empty_repetitions.get(&task).copied().unwrap_or(0)
    }

    /// Complete splits for the next answer to a client that knows the first `seen` of them, and how many it knows then.
    pub(super) fn for_client(&mut self, id: IterationId, client: ClientId, seen: u64) -> (Vec<u64>, u64) {
        self.of_clients.get_mut(&(id, client)).map_or((Vec::new(), seen), |news| news.next(seen))
    }

    /// Complete splits for the next answer to a task that knows the first `seen` of them, and how many it knows then.
    pub(super) fn for_task(&mut self, task: TaskId, seen: u64) -> (Vec<u64>, u64) {
        self.of_tasks.get_mut(&task).map_or((Vec::new(), seen), |news| news.next(seen))
    }

    /// A task is done.
    pub(super) fn forget_task(&mut self, id: IterationId, task: &Task) {
        self.of_tasks.remove(&task.id);
        self.empty_repetitions.remove(&task.id);
        if let Some(open) = self.open.get_mut(&id) {
            for split in task.leases.keys() {
                open.remove(split);
            }
        }
    }

    /// Forgets what clients that have left and tasks that are lost were not notified of.
    pub(super) fn retain_present(&mut self, state: &State) {
        self.of_clients.retain(|(iteration, client), _| state.is_member(*client, *iteration));
        let is_present = |task: &TaskId| state.task(*task).is_some_and(|(_, task)| !task.is_lost());
        self.of_tasks.retain(|task, _| is_present(task));
        self.empty_repetitions.retain(|task, _| is_present(task));
    }

    /// Forgets an iteration that was removed.
    pub(super) fn forget(&mut self, id: IterationId) {
        self.open.remove(&id);
        self.of_clients.retain(|(iteration, _), _| *iteration != id);
    }
}

/// About how many rows of a split present clients acknowledged: never too few.
fn most_acknowledged(iteration: &Iteration, split: u64) -> u64 {
    let of = |client| iteration.acknowledged_by(client).map_or(0, |known| known.most_rows_of(split));
    iteration.own_members().map(of).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_listed_until_they_are_known() {
        let mut news = News::default();
        (10..13).for_each(|split| news.push(split));
        assert_eq!(news.next(0), (vec![10, 11, 12], 3));
        news.push(13);
        assert_eq!(news.next(0), (vec![10, 11, 12, 13], 4), "the first answer was lost");
        assert_eq!(news.next(3), (vec![13], 4));
        assert_eq!(news.next(4), (Vec::new(), 4));
        news.push(14);
        assert_eq!(news.next(4), (vec![14], 5));
    }

    #[test]
    fn a_dispatcher_that_was_restarted_goes_on_behind_what_is_known() {
        let mut news = News::default();
        news.push(7);
        assert_eq!(news.next(100), (vec![7], 101), "none of the first 100 is in the list");
        assert_eq!(news.next(101), (Vec::new(), 101));
        let mut news = News::default();
        (0..5).for_each(|split| news.push(split));
        assert_eq!(news.next(2), (vec![0, 1, 2, 3, 4], 7), "the first two are others than these");
        assert_eq!(news.next(4), (vec![2, 3, 4], 7));
    }

    #[test]
    fn what_nobody_asks_for_is_bounded() {
        let mut news = News::default();
        (0..MAX_NEWS as u64 + 5).for_each(|split| news.push(split));
        let (listed, up_to) = news.next(0);
        assert_eq!((listed.len(), listed[0], up_to), (MAX_LISTED, 5, MAX_LISTED as u64));
        assert_eq!(news.splits.len(), MAX_NEWS);
    }
}
