//! How long the last rows of an epoch take.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The fraction of the rows that come before the tail.
const BEFORE: f64 = 0.99;

/// Measures the time from 99 % of an epoch's rows to its end.
#[derive(Debug)]
pub(crate) struct Tail {
    began: Instant,
    rows: u64,
    /// When the given number of rows had come, of those moments that may be the beginning of the tail: a hundredth of all.
    marks: VecDeque<(Duration, u64)>,
}

impl Tail {
    pub(crate) fn from_now() -> Self {
        Self { began: Instant::now(), rows: 0, marks: VecDeque::new() }
    }

    /// Rows have come.
    pub(crate) fn record(&mut self, rows: usize) {
        self.record_at(self.began.elapsed(), rows);
    }

    fn record_at(&mut self, at: Duration, rows: usize) {
        self.rows += rows as u64;
        self.marks.push_back((at, self.rows));
        while self.marks.front().is_some_and(|(_, by_then)| (*by_then as f64) < BEFORE * self.rows as f64) {
            self.marks.pop_front();
        }
    }

    /// The time from 99 % of the rows until now, which is the end.
    pub(crate) fn ended(&self) -> Duration {
        self.ended_at(self.began.elapsed())
    }

    fn ended_at(&self, end: Duration) -> Duration {
        self.marks.front().map_or(Duration::ZERO, |(at, _)| end.saturating_sub(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_begins_at_99_percent_of_the_rows() {
        let mut tail = Tail::from_now();
        assert_eq!(tail.ended_at(Duration::from_secs(1)), Duration::ZERO, "no rows");
        for ms in 1..=1000 {
            tail.record_at(Duration::from_millis(ms), 7);
        }
        assert_eq!(tail.ended_at(Duration::from_millis(1500)), Duration::from_millis(510));
        assert!(tail.marks.len() <= 11, "{}", tail.marks.len());
        tail.record_at(Duration::from_secs(9), 1_000_000);
        assert_eq!(tail.ended_at(Duration::from_secs(10)), Duration::from_secs(1));
    }
}
