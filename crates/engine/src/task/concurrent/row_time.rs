//! How many rows are computed in one piece.

use std::time::Duration;

use parking_lot::Mutex;

/// A chunk that takes longer by what was measured is cut into slices. Shorter ones stay whole, so that rows of fast stages
/// leave as they were read.
const WHOLE: Duration = Duration::from_millis(100);
/// The work of a slice. Handing a slice to a thread costs about 30 us, and to a process about 500 us: 1 % of it.
const SLICE: Duration = Duration::from_millis(50);
/// The last measurements that count. Of these the fastest one says what a row takes: a call for which a process had to load
/// modules, or that had the one slow row, makes the next rows no slower.
const MEASUREMENTS: usize = 4;

/// Measures what rows cost in some stages.
#[derive(Debug, Default)]
pub(in crate::task) struct RowTime {
    last: Mutex<Last>,
}

/// Seconds per row of the last measurements.
#[derive(Debug, Default)]
struct Last {
    per_row: [f64; MEASUREMENTS],
    count: usize,
}

impl RowTime {
    /// Rows took this time.
    pub(in crate::task) fn record(&self, rows: usize, took: Duration) {
        if rows == 0 {
            return;
        }
        let mut last = self.last.lock();
        let at = last.count % MEASUREMENTS;
        if let Some(slot) = last.per_row.get_mut(at) {
            *slot = took.as_secs_f64() / rows as f64;
        }
        last.count += 1;
    }

    /// The rows of the next slice of this many rows: all, unless they would take long.
    pub(in crate::task) fn slice_of(&self, rows: usize) -> usize {
        let last = self.last.lock();
        let measured = last.per_row.iter().take(last.count);
        let Some(per_row) = measured.copied().reduce(f64::min) else { return rows };
        rows_within(per_row, rows)
    }
}

/// The rows of a slice of rows that take this many seconds each: all, unless they take long together.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; saturates")]
pub(in crate::task) fn rows_within(per_row: f64, rows: usize) -> usize {
    if per_row * rows as f64 <= WHOLE.as_secs_f64() {
        return rows;
    }
    ((SLICE.as_secs_f64() / per_row) as usize).clamp(1, rows.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn chunks_stay_whole_until_they_are_measured_to_be_slow() {
        let row_time = RowTime::default();
        assert_eq!(row_time.slice_of(8192), 8192, "nothing is known");
        row_time.record(8192, ms(9));
        assert_eq!(row_time.slice_of(8192), 8192);
        let slow = RowTime::default();
        slow.record(100, ms(1000));
        assert_eq!((slow.slice_of(100), slow.slice_of(11), slow.slice_of(9)), (5, 5, 9));
        slow.record(1, ms(1));
        assert_eq!(slow.slice_of(100), 100, "rows may be fast again");
    }

    #[test]
    fn a_row_that_takes_longer_than_a_slice_is_a_slice() {
        let row_time = RowTime::default();
        row_time.record(3, ms(6000));
        assert_eq!((row_time.slice_of(10), row_time.slice_of(1), row_time.slice_of(0)), (1, 1, 0));
        row_time.record(0, ms(100));
        assert_eq!(row_time.slice_of(10), 1, "no rows say nothing");
    }

    #[test]
    fn one_slow_call_changes_nothing() {
        let row_time = RowTime::default();
        for i in 0..20 {
            // A module is loaded, or a row is slow, in every third call.
            row_time.record(10, ms(if i % 3 == 0 { 900 } else { 1 }));
            assert!(i == 0 || row_time.slice_of(500) == 500, "{i}");
        }
    }
}
