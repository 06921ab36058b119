//! A task's part in the window.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use caju_runtime::{LockRank, OrderedMutex};

use super::demand::{Demand, HeldBack};
use super::job::{MayShare, SharingJob};
use super::point::SharingPoint;
use super::shared_split::{Found, Next, SharedSplit, SplitRef};
use super::stats::{Counters, SharedCounts};
use super::window::SharingWindow;

/// The most splits that a request for leases names: as many as one answer leases, four times over, because some of them are
/// leased already.
const MAX_NAMED_SPLITS: usize = 256;

/// How often a task that waits for rows asks why they do not come.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// A task that shares the rows of its splits. Dropping it leaves the window.
#[derive(Debug)]
pub struct SharingMember {
    window: Arc<SharingWindow>,
    id: u64,
    points: Vec<SharingPoint>,
    demand: Arc<Demand>,
    /// Of each point.
    held_back: Vec<Arc<HeldBack>>,
    pub(super) counters: Counters,
    /// Splits that it has skipped and that the dispatcher does not know of, with their numbers of rows.
    skipped: OrderedMutex<Vec<(u64, u64)>>,
}

impl SharingWindow {
    /// Adds a task of a job that shares its rows at these points. It leaves when the handle is dropped.
    pub fn join(self: &Arc<Self>, job: SharingJob, points: Vec<SharingPoint>) -> Arc<SharingMember> {
        let demand = Demand::new(Arc::clone(&self.clock));
        let held_back: Vec<Arc<HeldBack>> =
            points.iter().map(|_| HeldBack::new(Arc::clone(&self.clock))).collect();
        let keys = points.iter().map(|p| p.key).collect();
        let id = self.add_member(job, keys, (Arc::clone(&demand), held_back.clone()));
        Arc::new(SharingMember {
            window: Arc::clone(self),
            id,
            points,
            demand,
            held_back,
            counters: Counters::default(),
            skipped: OrderedMutex::new(LockRank::leaf("the skipped splits"), Vec::new()),
        })
    }
}

impl SharingMember {
    /// The splits in the window that the task has not had, the oldest first, by the names of their leases.
    pub fn unread_splits(&self) -> Vec<u64> {
        self.window.unread_splits(self.id, MAX_NAMED_SPLITS)
    }

    /// What the readers of the task take. The output of the task says it here.
    pub fn demand(&self) -> &Arc<Demand> {
        &self.demand
    }

    /// The names of its sharing points.
    pub fn point_names(&self) -> Vec<u64> {
        self.points.iter().map(SharingPoint::name).collect()
    }

    /// What it computed, and what it read from the window.
    pub fn counts(&self) -> SharedCounts {
        self.counters.snapshot()
    }

    /// The splits that it has skipped and that the dispatcher does not know of, by their indexes in the iteration, with their
    /// numbers of rows.
    pub fn skipped_splits(&self) -> Vec<(u64, u64)> {
        self.skipped.lock().clone()
    }

    /// The dispatcher knows of the first `splits` of [`SharingMember::skipped_splits`].
    pub fn forget_skipped(&self, splits: usize) {
        let mut skipped = self.skipped.lock();
        let known = splits.min(skipped.len());
        skipped.drain(..known);
    }

    /// It skips a split.
    pub(super) fn add_skipped(&self, index: u64, rows: u64) {
        self.skipped.lock().push((index, rows));
    }

    /// The task ends: no other task waits for it, or computes rows for it.
    pub(crate) fn leave(&self) {
        self.window.leave(self.id);
    }

    /// Whether its own stages hold rows back at a place.
    pub(super) fn held_back(&self, place: usize) -> Option<Arc<HeldBack>> {
        let at = self.places().position(|p| p == place)?;
        self.held_back.get(at).map(Arc::clone)
    }

    /// The places of its points, from the source on.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.points.iter().map(|p| p.place)
    }

    pub(super) fn is_first(&self, place: usize) -> bool {
        self.points.first().is_some_and(|p| p.place == place)
    }

    pub(super) fn is_last(&self, place: usize) -> bool {
        self.points.last().is_some_and(|p| p.place == place)
    }

    /// A split begins. `below`: the place of the point above which the task does not read the window, and which has the rows
    /// of the split in another way.
    pub(super) async fn begin(
        self: &Arc<Self>,
        of: SplitRef,
        name: u64,
        below: Option<usize>,
        may: MayShare,
    ) -> SplitRoute {
        let from = below.and_then(|place| self.places().position(|p| p == place)).map_or(0, |at| at + 1);
        let to = match may {
            MayShare::GiveOnly => from,
            MayShare::Store(hint) => self.places().take_while(|place| *place <= hint).count().max(from),
            MayShare::Read | MayShare::Skip => usize::MAX,
        };
        let begun = self.window.begin(self.id, (of, name), from..to, may == MayShare::Skip).await;
        let read = begun.read.and_then(|(at, split)| {
            let place = self.points.get(at)?.place;
            Some(SharedRows {
                member: Arc::clone(self),
                split,
                place,
                batches: 0,
                is_read_back: false,
                starved: Duration::ZERO,
            })
        });
        if read.is_some() {
            self.counters.add_hit();
        }
        let write = begun.write.into_iter().filter_map(|(at, split)| self.writer(at, split)).collect();
        SplitRoute { read, write, skipped_rows: begun.skip }
    }

    /// The task computes the remaining rows of a split that it read at a place.
    pub(super) fn take_over(self: &Arc<Self>, of: SplitRef, name: u64, place: usize) -> Option<Writer> {
        self.counters.add_taken_over();
        let at = self.places().position(|p| p == place)?;
        let (at, split) = self.window.take_over(self.id, at, of, name)?;
        self.writer(at, split)
    }

    /// Whether the window writes rows to disk.
    pub(super) fn spills(&self) -> bool {
        self.window.spills()
    }

    /// Waits while rows are written to disk, if the window has no space for `bytes` bytes until then.
    pub(super) async fn wait_for_spill(&self, bytes: u64) {
        self.window.wait_for_spill(bytes).await;
    }

    fn writer(self: &Arc<Self>, at: usize, split: Arc<SharedSplit>) -> Option<Writer> {
        let place = self.points.get(at)?.place;
        Some(Writer { member: Arc::clone(self), split, place, rows: 0 })
    }
}

impl Drop for SharingMember {
    fn drop(&mut self) {
        self.window.leave(self.id);
    }
}

/// How a split begins.
#[derive(Debug)]
pub(super) struct SplitRoute {
    /// Where its rows are read from.
    pub(super) read: Option<SharedRows>,
    /// Where its rows go to.
    pub(super) write: Vec<Writer>,
    /// The number of its rows, if they are left out.
    pub(super) skipped_rows: Option<u64>,
}

/// The rows of a split in the window, for a task that reads them.
#[derive(Debug)]
pub(crate) struct SharedRows {
    member: Arc<SharingMember>,
    split: Arc<SharedSplit>,
    /// The place of the point at which the rows are.
    pub(crate) place: usize,
    batches: usize,
    /// Some of its rows came from disk.
    is_read_back: bool,
    /// How long this task waited for rows that another task held back, while its own readers could take more.
    starved: Duration,
}

impl SharedRows {
    /// The next rows; [`Next::Unavailable`] if no task has added any within `--sharing-wait`, if the tasks that compute the
    /// split, or their readers, held its rows back for that long in total, or if they cannot be read back from disk.
    pub(crate) async fn next(&mut self) -> Next {
        let window = &self.member.window;
        let deadline = window.clock.now() + window.wait();
        let mut before = window.clock.now();
        loop {
            let changed = self.split.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let next = match self.split.read(self.batches) {
                Found::Spilled(batch) => {
                    let (window, is_first) = (Arc::clone(window), !self.is_read_back);
                    let Some(batch) = window.read_back(&self.split, batch, is_first).await else {
                        return Next::Unavailable;
                    };
                    if is_first {
                        self.is_read_back = true;
                        self.member.counters.add_read_back();
                    }
                    Next::Batch(batch)
                }
                Found::Next(next) => next,
            };
            match next {
                Next::Pending => {}
                Next::Batch(batch) => {
                    self.batches += 1;
                    self.member.counters.add_from_window(batch.num_rows() as u64);
                    return Next::Batch(batch);
                }
                other => return other,
            }
            let now = window.clock.now();
            if self.member.demand.is_starved() && self.split.is_held_back() {
                self.starved += now.saturating_sub(before);
            }
            before = now;
            let left = deadline.saturating_sub(now).min(window.wait().saturating_sub(self.starved));
            if left.is_zero() {
                return Next::Unavailable;
            }
            tokio::select! {
                () = changed => {}
                () = window.clock.sleep(left.min(CHECK_EVERY)) => {}
            }
        }
    }
}

impl Drop for SharedRows {
    fn drop(&mut self) {
        self.member.window.remove_reader(&self.split);
    }
}

/// Puts the rows of a split into the window as they pass a point. If it is dropped before the end, the remaining rows are
/// not added.
#[derive(Debug)]
pub(super) struct Writer {
    member: Arc<SharingMember>,
    split: Arc<SharedSplit>,
    pub(super) place: usize,
    /// Rows that have passed.
    rows: u64,
}

impl Writer {
    /// Rows from ordinal `start` on have passed.
    pub(super) fn pass(&mut self, start: u64, pieces: &[RecordBatch]) {
        let rows: u64 = pieces.iter().map(|p| p.num_rows() as u64).sum();
        self.rows = start.saturating_add(rows);
        self.member.window.add(&self.split, start, pieces);
    }

    /// All rows have passed. `skipped`: rows that `on_error: skip` left out.
    pub(super) fn finish(self, skipped: u64) {
        self.member.window.finish(&self.split, self.rows, skipped);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.member.window.remove_writer(&self.split, self.member.id);
    }
}
