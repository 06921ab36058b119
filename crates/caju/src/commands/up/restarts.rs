//! How often workers may end by themselves.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time in which the ends of workers are counted. A machine that ends a worker now and then, for lack of memory say, keeps
/// running; one on which no worker can start is found within seconds.
pub(super) const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// Counts the workers that ended by themselves.
#[derive(Debug)]
pub(super) struct RestartLimit {
    most: u32,
    ends: VecDeque<Instant>,
}

impl RestartLimit {
    /// At most the given number of them within [`RESTART_WINDOW`].
    pub(super) fn new(most: u32) -> Self {
        Self { most, ends: VecDeque::new() }
    }

    /// The most.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// A worker has ended. False if that is one too many.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        while self.ends.front().is_some_and(|end| now.duration_since(*end) >= RESTART_WINDOW) {
            self.ends.pop_front();
        }
        self.ends.push_back(now);
        self.ends.len() <= self.most as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_forgotten_after_the_window() {
        let begin = Instant::now();
        let mut limit = RestartLimit::new(2);
        assert!(limit.admits(begin) && limit.admits(begin + RESTART_WINDOW / 2));
        assert!(limit.admits(begin + RESTART_WINDOW), "the first end is forgotten");
        assert!(!limit.admits(begin + RESTART_WINDOW), "three within the window");
        assert!(!RestartLimit::new(0).admits(begin));
    }
}
