//! The window of a worker: the rows of the splits that were computed last, bounded in bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use caju_runtime::{Clock, OrderedMutex};
use tokio::sync::Notify;

use super::demand::{Demand, HeldBack};
use super::evicted::EvictedSplits;
use super::had::HadSplits;
use super::job::SharingJob;
use super::locks;
use super::settings::{SharingLag, SharingSettings};
use super::shared_split::{SharedSplit, SplitId, SplitRef};
use super::spill::SpillFolder;
use super::stats::WindowUsage;

mod beginning;
mod eviction;
mod spilling;

/// Computed rows that tasks of several jobs read. One per worker.
#[derive(Debug)]
pub struct SharingWindow {
    settings: SharingSettings,
    pub(super) clock: Arc<dyn Clock>,
    state: OrderedMutex<State>,
    /// Space may be free, or a job that was behind has caught up.
    freed: Notify,
    /// Where rows go that do not fit; none: they are dropped.
    spill: Option<Arc<SpillFolder>>,
}

/// The state of the writer of spilled rows.
#[derive(Debug, Default)]
struct Writing {
    /// It writes a file.
    is_busy: bool,
    /// The most bytes for which a task waits.
    wanted_bytes: u64,
    /// Its present file took longer than [`SharingSettings::wait`]: no task waits for it.
    is_stalled: bool,
}

#[derive(Debug, Default)]
struct State {
    /// By number: in the order in which tasks began to compute them.
    splits: BTreeMap<u64, Arc<SharedSplit>>,
    by_id: HashMap<SplitId, u64>,
    members: BTreeMap<u64, Member>,
    next_split: u64,
    next_member: u64,
    bytes: u64,
    /// The splits that no task needs or reads, by number, with the bytes of each.
    idle: BTreeMap<u64, u64>,
    idle_bytes: u64,
    /// What has left.
    evicted: EvictedSplits,
    /// The bytes of a whole split at each point: the mean of the last ones.
    sizes: HashMap<u128, u64>,
    /// The splits with rows in memory, by number.
    resident: BTreeSet<u64>,
    /// The idle splits with rows on disk, by number.
    idle_on_disk: BTreeSet<u64>,
    writing: Writing,
    /// Since when no task has a point.
    unused: HashMap<u128, Duration>,
    counts: WindowUsage,
}

/// A task that shares.
#[derive(Debug)]
struct Member {
    job: SharingJob,
    /// The keys of its points, from the source on.
    points: Vec<u128>,
    /// Splits that it computed or read.
    had: HadSplits,
    /// It was behind for too long: no other task waits for it until it begins its next split.
    is_out: bool,
    /// Splits that wait for others: while there are some, the others do not wait for this task.
    waiting: usize,
    demand: Arc<Demand>,
    /// Whether its own stages hold rows back, of each point.
    held_back: Vec<Arc<HeldBack>>,
}

/// What a task finds when it begins a split.
#[derive(Debug, Default)]
pub(super) struct SplitPoints {
    /// The index of a point at which the rows are in the window, or will be.
    pub(super) read: Option<(usize, Arc<SharedSplit>)>,
    /// The points at which the task puts rows into the window.
    pub(super) write: Vec<(usize, Arc<SharedSplit>)>,
    /// The task leaves the split out, with this number of rows.
    pub(super) skip: Option<u64>,
}

impl SharingWindow {
    /// An empty window in memory. Under [`SharingLag::Spill`] it drops what does not fit.
    pub fn new(settings: SharingSettings, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { settings, clock, state: Self::empty(), freed: Notify::new(), spill: None })
    }

    /// An empty window with a folder for rows that do not fit in memory, if the settings say [`SharingLag::Spill`].
    /// [`SharingWindow::spill`] writes them.
    pub fn with_spill(settings: SharingSettings, clock: Arc<dyn Clock>, folder: SpillFolder) -> Arc<Self> {
        let spill = (settings.lag == SharingLag::Spill).then(|| Arc::new(folder));
        Arc::new(Self { settings, clock, state: Self::empty(), freed: Notify::new(), spill })
    }

    fn empty() -> OrderedMutex<State> {
        OrderedMutex::new(locks::WINDOW, State::default())
    }

    /// Adds a task of a job that shares its rows at the points with these keys, from the source on. Returns its number.
    pub(super) fn add_member(
        &self,
        job: SharingJob,
        keys: Vec<u128>,
        (demand, held_back): (Arc<Demand>, Vec<Arc<HeldBack>>),
    ) -> u64 {
        let mut state = self.state.lock();
        let id = state.next_member;
        state.next_member += 1;
        state.unused.retain(|point, _| !keys.contains(point));
        let member = Member {
            job,
            points: keys,
            had: HadSplits::default(),
            is_out: false,
            waiting: 0,
            demand,
            held_back,
        };
        state.members.insert(id, member);
        state.refresh_all();
        id
    }

    /// What is in the window.
    pub fn usage(&self) -> WindowUsage {
        let mut state = self.state.lock();
        state.prune(self.clock.now(), self.settings.wait);
        let (bytes, splits) = (state.bytes, state.splits.len() as u64);
        let (disk_bytes, disk_limit_bytes) = self.spill.as_ref().map_or((0, 0), |folder| folder.usage());
        let limit_bytes = self.settings.window_bytes;
        WindowUsage { bytes, limit_bytes, splits, disk_bytes, disk_limit_bytes, ..state.counts }
    }

    pub(super) fn wait(&self) -> Duration {
        self.settings.wait
    }

    /// The splits at points of a member that it has not had, the oldest first, at most `most`; by the names of leases. While
    /// readers of the task could take more than they get, without those whose next rows another task holds back: it computes
    /// splits that no task has begun instead.
    pub(super) fn unread_splits(&self, member: u64, most: usize) -> Vec<u64> {
        let state = self.state.lock();
        let Some(of) = state.members.get(&member) else { return Vec::new() };
        let is_starved = of.demand.is_starved();
        let unread = state.splits.values().filter(|s| of.needs(s) && !(is_starved && s.is_held_back()));
        let mut names = Vec::new();
        for split in unread {
            // The window has a split once per point.
            if !names.contains(&split.name) {
                names.push(split.name);
            }
            if names.len() == most {
                break;
            }
        }
        names
    }

    /// A task that read a split at a point computes its remaining rows: it gives them to others, too.
    pub(super) fn take_over(
        &self,
        member: u64,
        at: usize,
        of: SplitRef,
        name: u64,
    ) -> Option<(usize, Arc<SharedSplit>)> {
        self.state.lock().open(member, at, of, name)
    }

    /// Rows of a split have passed a point.
    pub(super) fn add(&self, split: &Arc<SharedSplit>, start: u64, pieces: &[RecordBatch]) {
        let mut state = self.state.lock();
        let added = split.add(start, pieces);
        if added > 0 {
            state.bytes += added;
            state.resident.insert(split.number);
            state.refresh(split);
            state.trim(self.settings.backlog_bytes);
            state.evict(split, self.settings.window_bytes);
            state.counts.peak_bytes = state.counts.peak_bytes.max(state.bytes);
            self.wake_spill(&state);
        }
        drop(state);
        split.changed.notify_waiters();
    }

    /// All rows of a split have passed a point.
    pub(super) fn finish(&self, split: &Arc<SharedSplit>, rows: u64, skipped: u64) {
        let mut state = self.state.lock();
        if split.finish(rows, skipped) {
            let bytes = split.total_bytes();
            state.sizes.entry(split.id.point).and_modify(|mean| *mean = (*mean + bytes) / 2).or_insert(bytes);
        } else if !state.splits.contains_key(&split.number) {
            // It left the window before its end.
            state.depart(split, rows);
        }
        drop(state);
        split.changed.notify_waiters();
    }

    /// A task has stopped computing a split.
    pub(super) fn remove_writer(&self, split: &Arc<SharedSplit>, member: u64) {
        let mut state = self.state.lock();
        if split.remove_writer(member) {
            state.remove(split);
        }
        drop(state);
        split.changed.notify_waiters();
        self.freed.notify_waiters();
    }

    /// A task has stopped reading a split.
    pub(super) fn remove_reader(&self, split: &Arc<SharedSplit>) {
        let mut state = self.state.lock();
        split.remove_reader();
        state.refresh(split);
        state.trim(self.settings.backlog_bytes);
        drop(state);
        self.freed.notify_waiters();
    }

    /// A task leaves. Rows at points that no other task has stay for a while: the next epoch of its job may need them.
    pub(super) fn leave(&self, member: u64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let points = state.members.remove(&member).map(|m| m.points).unwrap_or_default();
        for point in points {
            if !state.members.values().any(|m| m.points.contains(&point)) {
                state.unused.insert(point, now);
            }
        }
        state.prune(now, self.settings.wait);
        state.forget_evicted();
        state.refresh_all();
        state.trim(self.settings.backlog_bytes);
        drop(state);
        self.freed.notify_waiters();
    }
}

impl Member {
    /// Whether it has a point in an epoch.
    fn is_in(&self, point: u128, epoch: u64) -> bool {
        self.job.epoch == epoch && self.points.contains(&point)
    }

    /// Whether it has not had a split, and can read it.
    fn needs(&self, split: &SharedSplit) -> bool {
        self.points.contains(&split.id.point) && !self.had.contains(&split.id.split)
    }
}

impl State {
    /// The last point of a member at which a split is in the window, from the point with index `from` on.
    fn find(&self, member: u64, of: SplitRef, points: Range<usize>) -> Option<(usize, Arc<SharedSplit>)> {
        let all = &self.members.get(&member)?.points;
        let known = all.iter().enumerate().take(points.end).skip(points.start);
        known.rev().find_map(|(at, point)| {
            let number = self.by_id.get(&SplitId { point: *point, split: of })?;
            self.splits.get(number).map(|split| (at, Arc::clone(split)))
        })
    }

    /// The rows of a split that a member skips.
    fn skipped(&self, member: u64, of: SplitRef, from: usize) -> Option<u64> {
        let member = self.members.get(&member)?;
        let points = member.points.iter().skip(from).rev();
        let mut ids = points.map(|point| SplitId { point: *point, split: of });
        ids.find_map(|id| self.evicted.skipped(&id, member.job))
    }

    /// All rows of a split were evicted: tasks of its epoch have to know that.
    fn depart(&mut self, split: &SharedSplit, rows: u64) {
        if self.members.values().any(|m| m.is_in(split.id.point, split.by.epoch)) {
            self.evicted.add(split.id, rows, split.by);
        }
    }

    /// Forgets what left the window in epochs that no task is in.
    fn forget_evicted(&mut self) {
        let members = &self.members;
        self.evicted.retain(|point, epoch| members.values().any(|m| m.is_in(point, epoch)));
    }

    /// The points at which rows of a member are of use: for each other task the last one that both have. Without such a task
    /// all of them, for a task that may come: it may have another one in common.
    fn useful_points(&self, member: u64) -> Vec<usize> {
        let Some(me) = self.members.get(&member) else { return Vec::new() };
        let common = |other: &Member| me.points.iter().rposition(|point| other.points.contains(point));
        let others = self.members.iter().filter(|(id, _)| **id != member);
        let mut useful: Vec<usize> = others.filter_map(|(_, other)| common(other)).collect();
        if useful.is_empty() {
            useful.extend(0..me.points.len());
        }
        useful.sort_unstable();
        useful.dedup();
        useful
    }

    /// The rows of a split at a point, for a task that computes them.
    fn open(&mut self, member: u64, at: usize, of: SplitRef, name: u64) -> Option<(usize, Arc<SharedSplit>)> {
        let me = self.members.get(&member)?;
        let (job, point, demand) = (me.job, *me.points.get(at)?, Arc::clone(&me.demand));
        let held_back = Arc::clone(me.held_back.get(at)?);
        let id = SplitId { point, split: of };
        let known = self.by_id.get(&id).and_then(|number| self.splits.get(number));
        let split = match known {
            Some(split) => Arc::clone(split),
            None => {
                let number = self.next_split;
                self.next_split += 1;
                let split = Arc::new(SharedSplit::new(id, name, number, job));
                self.splits.insert(number, Arc::clone(&split));
                self.by_id.insert(id, number);
                self.refresh(&split);
                split
            }
        };
        split.add_writer(member, demand, held_back);
        Some((at, split))
    }

    /// The tasks that one waits for: not those that were behind for too long, and of those that wait themselves only the ones
    /// that are further behind. So two tasks never wait for each other, and the one that lags goes on.
    fn awaited_by(&self, member: u64) -> Vec<&Member> {
        let own = self.members.get(&member).map_or(0, |me| self.bytes_needed_by(me));
        let others = self.members.iter().filter(|(id, m)| **id != member && !m.is_out);
        let is_awaited = |m: &&Member| m.waiting == 0 || self.bytes_needed_by(m) > own;
        others.map(|(_, m)| m).filter(is_awaited).collect()
    }

    /// Bytes of the splits in the window that a task has not had, with those to come.
    fn bytes_needed_by(&self, member: &Member) -> u64 {
        let needed = self.splits.values().filter(|s| member.needs(s));
        needed.map(|s| self.size_of(s)).fold(0, u64::saturating_add)
    }

    /// The bytes of a split, of one that is computed with those to come.
    fn size_of(&self, split: &SharedSplit) -> u64 {
        let mean = self.sizes.get(&split.id.point).copied().unwrap_or(0);
        if split.is_whole() { split.bytes() } else { split.bytes().max(mean) }
    }

    /// Whether a further split fits in addition to those that some task needs or reads, or no other task is waited for.
    fn has_space(&self, member: u64, limit: u64) -> bool {
        let awaited = self.awaited_by(member);
        if !self.splits.values().any(|s| awaited.iter().any(|m| m.needs(s))) {
            return true;
        }
        let is_needed = |s: &SharedSplit| self.members.values().any(|m| !m.is_out && m.needs(s));
        let needed = self.splits.values().filter(|s| s.is_read() || is_needed(s)).map(|s| self.size_of(s));
        let points = self.members.get(&member).map_or(&[][..], |m| &m.points);
        let own = points.last().and_then(|point| self.sizes.get(point)).copied().unwrap_or(0);
        needed.fold(own, u64::saturating_add) <= limit
    }

    /// Tasks that need the oldest split that some task needs are not waited for any more.
    fn leave_behind(&mut self, but: u64) {
        let awaited = self.awaited_by(but);
        let oldest = self.splits.values().find(|s| awaited.iter().any(|m| m.needs(s))).cloned();
        let Some(oldest) = oldest else { return };
        for (_, member) in self.members.iter_mut().filter(|(id, m)| **id != but && m.needs(&oldest)) {
            member.is_out = true;
        }
    }
}

#[cfg(test)]
mod tests;
