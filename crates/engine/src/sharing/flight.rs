//! The splits of one task on their way past its sharing points.

use std::collections::HashMap;
use std::sync::Arc;

use caju_wire::Chunk;
use parking_lot::Mutex;

use super::demand::HeldBack;
use super::job::MayShare;
use super::member::{SharedRows, SharingMember, Writer};
use super::shared_split::SplitRef;
use crate::context::TaskContext;
use crate::lease::LeasedSplit;

/// The splits of a task that read from the window, or put rows into it.
pub(crate) struct Flights {
    member: Arc<SharingMember>,
    ctx: Arc<TaskContext>,
    /// The number of the definition's stages above each place.
    stages: HashMap<usize, usize>,
    splits: Mutex<HashMap<u64, Flight>>,
}

/// How a task comes by the rows of a split.
pub(crate) enum Begin {
    /// It computes them.
    Compute,
    /// They are in the window, or will be.
    Read(SharedRows),
    /// It leaves them out.
    Skip,
}

/// A split on its way.
struct Flight {
    of: SplitRef,
    /// As leases name it.
    name: u64,
    /// Where its rows go to.
    writers: Vec<Writer>,
    /// Whether the task computes its rows: they come neither from the window nor from a stored part.
    is_computed: bool,
    /// Rows below this ordinal were read at this place.
    had: Option<(usize, u64)>,
}

impl Flights {
    /// `stages`: the places of the task's points, and the number of the definition's stages above each.
    pub(crate) fn new(
        member: Arc<SharingMember>,
        ctx: Arc<TaskContext>,
        stages: HashMap<usize, usize>,
    ) -> Self {
        Self { member, ctx, stages, splits: Mutex::default() }
    }

    /// A split begins. `below`: the place of a hint at which a stored part has its rows.
    pub(crate) async fn begin(&self, lease: &LeasedSplit, below: Option<usize>, may: MayShare) -> Begin {
        // Rows of a part of a split have gaps.
        if lease.split.trim.is_some() || lease.split.stride.is_some() || lease.group.is_some() {
            return Begin::Compute;
        }
        // Of a split that is run again some rows may be with readers: then it has the others, too.
        let may = if lease.done.is_empty() || may != MayShare::Skip { may } else { MayShare::Read };
        let of = SplitRef { key: lease.split.key.0, repetition: lease.split.repetition };
        let begun = self.member.begin(of, lease.name, below, may).await;
        if let Some(rows) = begun.skipped_rows {
            // Readers must not call it complete: it is over when the dispatcher knows that its rows were skipped.
            self.ctx.not_sized(lease.index);
            self.member.add_skipped(lease.index, rows);
            return Begin::Skip;
        }
        let is_computed = begun.read.is_none() && below.is_none();
        let flight = Flight { of, name: lease.name, writers: begun.write, is_computed, had: None };
        self.splits.lock().insert(lease.index, flight);
        begun.read.map_or(Begin::Compute, Begin::Read)
    }

    /// The task computes a split of which it has read the first `rows` rows at a place.
    pub(crate) fn take_over(&self, index: u64, place: usize, rows: u64) {
        let mut splits = self.splits.lock();
        let Some(flight) = splits.get_mut(&index) else { return };
        flight.is_computed = true;
        flight.had = Some((place, rows));
        flight.writers.extend(self.member.take_over(flight.of, flight.name, place));
    }

    /// Rows of one split pass a place. Returns those that the task has not read there. Waits while the window writes rows to disk
    /// to have space.
    pub(crate) async fn pass(&self, place: usize, chunk: Chunk) -> Option<Chunk> {
        if self.member.spills() && self.puts(place, &chunk) {
            self.member.wait_for_spill(chunk.bytes() as u64).await;
        }
        self.put(place, chunk)
    }

    /// Whether the stages below a place hold its rows back.
    pub(crate) fn held_back(&self, place: usize) -> Option<Arc<HeldBack>> {
        self.member.held_back(place)
    }

    /// Whether rows go to the window at a place.
    fn puts(&self, place: usize, chunk: &Chunk) -> bool {
        let splits = self.splits.lock();
        let flight = chunk.runs.first().and_then(|run| splits.get(&run.split));
        flight.is_some_and(|flight| flight.writers.iter().any(|w| w.place == place))
    }

    fn put(&self, place: usize, chunk: Chunk) -> Option<Chunk> {
        let run = *chunk.runs.first()?;
        let mut splits = self.splits.lock();
        let Some(flight) = splits.get_mut(&run.split) else { return Some(chunk) };
        if flight.is_computed && self.member.is_first(place) {
            self.member.counters.add_computed(chunk.rows() as u64);
        }
        for writer in flight.writers.iter_mut().filter(|w| w.place == place) {
            writer.pass(run.start, &chunk.pieces);
        }
        let had = flight.had.filter(|(at, _)| *at == place).map_or(0, |(_, rows)| rows);
        drop(splits);
        if run.start >= had {
            return Some(chunk);
        }
        let (first, rows) = (usize::try_from(had - run.start).unwrap_or(usize::MAX), chunk.rows());
        (first < rows).then(|| chunk.slice_rows(first, rows - first))
    }

    /// All rows of a split have passed a place.
    pub(crate) fn end(&self, place: usize, index: u64) {
        let mut splits = self.splits.lock();
        let Some(flight) = splits.get_mut(&index) else { return };
        let (here, others) = std::mem::take(&mut flight.writers).into_iter().partition(|w| w.place == place);
        flight.writers = others;
        if self.member.is_last(place) {
            splits.remove(&index);
        }
        drop(splits);
        let here: Vec<Writer> = here;
        let stages = self.stages.get(&place).copied().unwrap_or(0);
        for writer in here {
            writer.finish(self.ctx.skipped_above(index, stages));
        }
    }

    /// The task is over: what it had not computed, others compute.
    pub(crate) fn close(&self) {
        let left = std::mem::take(&mut *self.splits.lock());
        drop(left);
        self.member.leave();
    }
}
