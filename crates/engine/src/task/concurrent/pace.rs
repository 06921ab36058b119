//! How many rows are computed in one piece.

use std::time::Duration;

use parking_lot::Mutex;

/// Seconds of work in a slice. Handing a slice to a thread costs about 30 us, so that is 0.2 % of it. A slice of rows of 5 ms
/// has four of them.
const SLICE_S: f64 = 0.02;
/// What a measurement counts for after one more slice: half after 32 slices. Of rows of which one in ten is slow that many
/// slices have some; and the first rows, for which a process may have to start, are soon forgotten.
const KEPT: f64 = 0.978_572;

/// Measures what rows cost in some stages, over the last slices of them.
#[derive(Debug, Default)]
pub(in crate::task) struct Pace {
    sum: Mutex<Sum>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    rows: f64,
    seconds: f64,
}

impl Pace {
    /// Rows took this time.
    pub(in crate::task) fn record(&self, rows: usize, took: Duration) {
        let mut sum = self.sum.lock();
        *sum = Sum { rows: sum.rows * KEPT + rows as f64, seconds: sum.seconds * KEPT + took.as_secs_f64() };
    }

    /// A pace that gives slices of this number of rows.
    #[cfg(test)]
    pub(super) fn fixed(rows: usize) -> Self {
        let pace = Self::default();
        // Rounding down must not take a row.
        pace.record(rows, Duration::from_secs_f64(SLICE_S * 0.999));
        pace
    }

    /// The rows of a slice, at least one. Before the first measurement it is one: if rows take long, all threads have some.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; saturates")]
    pub(super) fn rows(&self) -> usize {
        let sum = *self.sum.lock();
        if sum.rows <= 0.0 {
            return 1;
        }
        ((SLICE_S * sum.rows / sum.seconds.max(1e-9)) as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pace: &Pace, slices: usize, rows: usize, took: Duration) -> usize {
        (0..slices).for_each(|_| pace.record(rows, took));
        pace.rows()
    }

    #[test]
    fn slices_of_slow_rows_are_short_and_those_of_fast_rows_are_whole_chunks() {
        assert_eq!(Pace::default().rows(), 1);
        let us = Duration::from_micros;
        assert!(
            after(&Pace::default(), 1, 1, us(200)) >= 99,
            "a small chunk of rows that look slow at first"
        );
        assert!(after(&Pace::default(), 3, 8192, us(900)) > 65_536);
        assert_eq!(after(&Pace::default(), 3, 10, us(45_000)), 4);
        assert_eq!(after(&Pace::default(), 3, 1, us(100_000)), 1);
    }

    #[test]
    fn some_slow_rows_among_fast_ones_are_not_forgotten_and_a_slow_start_is() {
        let pace = Pace::default();
        for i in 0..1000 {
            // Every tenth slice has the row of 100 ms.
            let took = if i % 10 == 0 { 100_000 } else { 10 };
            pace.record(1, Duration::from_micros(took));
            assert!(pace.rows() <= 40, "{} at {i}", pace.rows());
        }
        let pace = Pace::default();
        after(&pace, 5, 1, Duration::from_secs(1));
        assert_eq!(pace.rows(), 1);
        assert!(after(&pace, 200, 1, Duration::from_millis(1)) >= 5);
    }
}
