//! The bounds of queues: larger where both sides wait in turn, and smaller where memory is short.

use std::collections::BTreeMap;

use super::TunedSetting;

/// Steps after which the bound of a queue is judged: 4 seconds of half-second steps, so that a burst is seen from both sides.
const WINDOW: u32 = 8;
/// The least fraction of a window that each side waits, when the queue is too small. One side alone is the bottleneck, which no
/// buffer helps. Below this a larger buffer brings at most 3 % of the rows.
const MIN_WAIT_TO_GROW: f64 = 0.03;
/// The largest fraction of a window that one of the sides waits, when the queue may be smaller. It is far below
/// [`MIN_WAIT_TO_GROW`], so that a queue does not grow and shrink in turn.
const MAX_WAIT_TO_SHRINK: f64 = 0.005;
/// Windows in a row in which a queue may be smaller before it is: a minute of half-second steps.
const WINDOWS_TO_SHRINK: u32 = 15;

/// The limits of what queues hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferBounds {
    /// The most bytes of all queues together.
    pub limit_bytes: usize,
    /// Whether a queue may grow beyond its first bound. Otherwise that was given by hand, and only a lack of memory lowers it.
    pub may_grow: bool,
}

/// What happened at a queue in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueSample {
    /// Identifies the queue.
    pub id: u64,
    /// Its bound in bytes.
    pub bound_bytes: usize,
    /// The bound that it was made with, or would have been if memory had been free.
    pub first_bytes: usize,
    /// The fraction of the step for which it was full and a producer waited.
    pub full: f64,
    /// The fraction of the step for which it was empty and a consumer waited.
    pub empty: f64,
}

/// What each queue should hold.
#[derive(Debug)]
pub(super) struct Buffers {
    bounds: BufferBounds,
    wants: BTreeMap<u64, Want>,
}

#[derive(Debug, Default)]
struct Want {
    bytes: usize,
    has_grown: bool,
    /// Windows in a row in which it might have been smaller.
    windows_to_shrink: u32,
    steps: u32,
    full: f64,
    empty: f64,
}

impl Buffers {
    pub(super) fn new(bounds: BufferBounds) -> Self {
        Self { bounds, wants: BTreeMap::new() }
    }

    /// The bounds that change.
    pub(super) fn step(&mut self, queues: &[QueueSample]) -> BTreeMap<u64, usize> {
        self.wants.retain(|id, _| queues.iter().any(|q| q.id == *id));
        for queue in queues {
            let first = Want { bytes: queue.first_bytes, ..Want::default() };
            let want = self.wants.entry(queue.id).or_insert(first);
            if self.bounds.may_grow {
                want.observe(queue, self.bounds.limit_bytes);
            }
        }
        let level = self.level();
        let bound = |q: &QueueSample| Some((q.id, self.wants.get(&q.id)?.bytes.min(level)));
        let changed = |q: &&QueueSample| bound(q).is_some_and(|(_, bytes)| bytes != q.bound_bytes);
        queues.iter().filter(changed).filter_map(bound).collect()
    }

    fn level(&self) -> usize {
        level(self.wants.values().map(|w| w.bytes), self.bounds.limit_bytes)
    }

    /// The sum of all bounds, and why it is that.
    pub(super) fn setting(&self) -> TunedSetting {
        let (level, count) = (self.level(), self.wants.len());
        let value = self.wants.values().map(|w| w.bytes.min(level) as u64).sum();
        let grown = self.wants.values().filter(|w| w.has_grown).count();
        let reason = match (level, grown, self.bounds.may_grow) {
            (usize::MAX, 0, true) => format!("{count} queues, none with two sides that wait in turn"),
            (usize::MAX, _, true) => {
                format!("{grown} of {count} queues are larger because both sides waited in turn")
            }
            (usize::MAX, _, false) => format!("{count} queues with a bound that was given by hand"),
            _ => format!("{count} queues are to fit in {} bytes", self.bounds.limit_bytes),
        };
        TunedSetting { name: "buffer_bytes", job: None, value, reason }
    }
}

impl Want {
    fn observe(&mut self, queue: &QueueSample, limit_bytes: usize) {
        (self.steps, self.full, self.empty) =
            (self.steps + 1, self.full + queue.full, self.empty + queue.empty);
        if self.steps < WINDOW {
            return;
        }
        let both = self.full.min(self.empty) / f64::from(self.steps);
        self.windows_to_shrink = if both < MAX_WAIT_TO_SHRINK { self.windows_to_shrink + 1 } else { 0 };
        // A bound that it did not get cannot have been too small.
        if both >= MIN_WAIT_TO_GROW && queue.bound_bytes >= self.bytes {
            self.bytes = self.bytes.saturating_mul(2).min(limit_bytes);
        } else if self.windows_to_shrink >= WINDOWS_TO_SHRINK {
            (self.bytes, self.windows_to_shrink) = ((self.bytes / 2).max(queue.first_bytes), 0);
        }
        self.has_grown = self.bytes > queue.first_bytes;
        (self.steps, self.full, self.empty) = (0, 0.0, 0.0);
    }
}

/// The most bytes that each queue may have, so that all together stay within the limit, and none gives up bytes for one that
/// has more.
pub(super) fn level(wants: impl Iterator<Item = usize>, limit_bytes: usize) -> usize {
    let mut wants: Vec<usize> = wants.collect();
    wants.sort_unstable();
    let (mut free, mut left) = (limit_bytes, wants.len());
    for want in wants {
        if want > free / left {
            return (free / left).max(1);
        }
        free -= want;
        left -= 1;
    }
    usize::MAX
}
