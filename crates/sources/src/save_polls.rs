//! How often a save that is being written is polled, and for how long.

use std::time::Duration;

/// The first pause between two polls of a save.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause: it bounds the requests to the store, and how late new parts are found.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The polls of one save.
#[derive(Debug)]
pub(crate) struct SavePolls {
    pause: Duration,
    /// Since the last new part.
    quiet: Duration,
    /// A save without a new part for this time counts as abandoned.
    timeout: Duration,
}

impl SavePolls {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { pause: FIRST_PAUSE, quiet: Duration::ZERO, timeout }
    }

    /// How long a save may have no new part.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long to wait before the next look; none if there was no new part for too long.
    pub(crate) fn next_pause(&mut self) -> Option<Duration> {
        if self.quiet >= self.timeout {
            return None;
        }
        let pause = self.pause;
        self.quiet += pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Some(pause)
    }

    /// There was a new part.
    pub(crate) fn on_part(&mut self) {
        *self = Self::new(self.timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(300);

    #[test]
    fn a_save_without_new_parts_is_given_up() {
        let mut polls = SavePolls::new(TIMEOUT);
        let pauses: Vec<Duration> = std::iter::from_fn(|| polls.next_pause()).collect();
        let waited: Duration = pauses.iter().sum();
        assert!(waited >= TIMEOUT && waited < TIMEOUT + LONGEST_PAUSE, "{waited:?}");
        assert_eq!((pauses[0], pauses[pauses.len() - 1]), (FIRST_PAUSE, LONGEST_PAUSE));
        polls.on_part();
        assert_eq!(polls.next_pause(), Some(FIRST_PAUSE));
    }
}
