//! When readers call, in which order, and what their calls say of their users.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::IterationId;

/// What a call of a reader says.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderCall {
    /// When it arrived, by the monotonic clock.
    pub(super) now: Duration,
    /// Its user took rows.
    pub(super) took: bool,
    /// Its user has taken all that the reader will get, as of now.
    pub(super) is_at_end: bool,
}

/// The calls of one reader. They change only when a call arrives: a call that waits in this process says nothing about its
/// sender.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct CallTimes {
    /// The number of the last call; 0 while the reader has not called this process.
    pub(super) last: u64,
    /// When the last call arrived, by the monotonic clock.
    arrived_at: Duration,
    /// When the last call arrived that said that its user had taken rows.
    pub(super) took_at: Duration,
    /// Since which call, and since when, its user has taken all that it will get.
    at_end: Option<(u64, Duration)>,
}

impl CallTimes {
    /// The call with this number arrives.
    pub(super) fn record(&mut self, number: u64, call: ReaderCall) {
        (self.last, self.arrived_at) = (number, call.now);
        if call.took {
            self.took_at = call.now;
        }
        self.at_end = match self.at_end {
            _ if !call.is_at_end => None,
            None => Some((number, call.now)),
            since => since,
        };
    }

    /// Whether its user has taken all that it will get.
    pub(super) fn is_at_end(&self) -> bool {
        self.at_end.is_some()
    }

    /// Whether another reader, which is at its end, does not wait for this one: since then this one has called, and its user
    /// has taken no row for `patience`, as of that call.
    pub(super) fn is_stalled(&self, other: &CallTimes, patience: Duration) -> bool {
        let Some((call, at_end)) = other.at_end else { return false };
        let since = self.took_at.max(at_end);
        self.last > call && self.arrived_at.saturating_sub(since) >= patience
    }
}

/// The readers that left their iterations.
#[derive(Debug, Default)]
pub(super) struct Leaves(BTreeMap<IterationId, Leave>);

/// The readers that left one iteration.
#[derive(Debug, Default, Clone, Copy)]
struct Leave {
    /// The number of the last call with which one left.
    call: u64,
    /// The most elements that one had taken.
    most_elements: u64,
}

impl Leaves {
    /// A reader leaves with the call of this number, whose user had taken this number of elements.
    pub(super) fn record(&mut self, iteration: IterationId, call: u64, elements: u64) {
        let leave = self.0.entry(iteration).or_default();
        leave.call = call;
        leave.most_elements = leave.most_elements.max(elements);
    }

    /// The number of the last call with which a reader left an iteration; 0 before the first one.
    pub(super) fn last_call(&self, iteration: IterationId) -> u64 {
        self.0.get(&iteration).map_or(0, |leave| leave.call)
    }

    /// The most elements that a reader had taken when it left an iteration.
    pub(super) fn most_elements(&self, iteration: IterationId) -> u64 {
        self.0.get(&iteration).map_or(0, |leave| leave.most_elements)
    }

    /// Drops what is known of an iteration.
    pub(super) fn forget(&mut self, iteration: IterationId) {
        self.0.remove(&iteration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn call(now: u32, took: bool, is_at_end: bool) -> ReaderCall {
        ReaderCall { now: S * now, took, is_at_end }
    }

    #[test]
    fn a_reader_is_stalled_if_it_called_without_taking_rows_for_long_enough() {
        let (mut waits, mut other) = (CallTimes::default(), CallTimes::default());
        other.record(1, call(1, true, false));
        assert!(!other.is_stalled(&waits, S), "nobody is at its end");
        waits.record(2, call(2, true, true));
        assert!(waits.is_at_end() && !other.is_stalled(&waits, Duration::ZERO), "it has not called since");
        other.record(3, call(4, false, false));
        assert!(other.is_stalled(&waits, S * 2) && !other.is_stalled(&waits, S * 3));
        other.record(4, call(5, true, false));
        assert!(!other.is_stalled(&waits, S));
        // The end counts from the first call that said so, and ends if there is more to take.
        waits.record(5, call(6, false, true));
        other.record(6, call(7, false, false));
        assert!(other.is_stalled(&waits, S * 2));
        waits.record(7, call(8, false, false));
        assert!(!waits.is_at_end() && !other.is_stalled(&waits, Duration::ZERO));
    }
}
