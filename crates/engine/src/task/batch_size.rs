//! The number of rows in a batch of the engine.
//!
//! Handing a batch from thread to thread costs about 30 µs, whatever its size. Where rows are narrow and cheap to compute
//! that dominates, so batches grow until their work outweighs the handover. Where stages make rows much larger (a row number
//! becomes a picture) batches shrink, so that a batch stays within its memory at its widest stage. Rows and their random
//! draws are the same for every batch size, so measurements may control it.

use caju_proto::v1::StageStats;

use super::read::Reading;

/// The most rows of a batch, as a multiple of the nominal rows.
const GROWTH: usize = 8;
/// Seconds of work in a batch at which the handover costs about 3 %.
const TARGET_WORK_S: f64 = 1e-3;
/// The most bytes of a batch at its widest stage, as a multiple of the nominal bytes.
const MAX_GROWN_BYTES: f64 = 32.0;

impl Reading {
    /// Sets the size of batches by measurements: those of the split-local stages, beginning with the one at which rows enter.
    pub(super) fn sized(self, stages: &[StageStats]) -> Self {
        let Some(cost) = RowCost::of(stages) else { return self };
        let bytes = self.batch_bytes as f64;
        let grown = at_most(TARGET_WORK_S, cost.busy_s).min(at_most(bytes, cost.bytes));
        let grown = grown.clamp(self.batch_rows, self.batch_rows.saturating_mul(GROWTH));
        Self { batch_rows: grown.min(at_most(MAX_GROWN_BYTES * bytes, cost.bytes)).max(1), ..self }
    }
}

/// The cost of one row.
struct RowCost {
    /// Work of all stages.
    busy_s: f64,
    /// Bytes at the widest stage.
    bytes: f64,
}

impl RowCost {
    fn of(stages: &[StageStats]) -> Option<Self> {
        let entered = stages.first().map(|s| s.rows_out).filter(|&n| n > 0)?;
        let (mut rows, mut cost) = (1.0, Self { busy_s: 0.0, bytes: 0.0 });
        for (i, stage) in stages.iter().enumerate() {
            let input = if i == 0 { entered } else { stage.rows_in };
            if input == 0 {
                continue;
            }
            let per_row = |total: f64| rows * total / input as f64;
            cost.busy_s += per_row(stage.busy_s.max(stage.cpu_s));
            cost.bytes = cost.bytes.max(per_row(stage.bytes_out as f64));
            rows *= stage.rows_out as f64 / input as f64;
        }
        Some(cost)
    }
}

/// The number of times that `part` fits into `whole`, rounded down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "neither is negative; saturates")]
fn at_most(whole: f64, part: f64) -> usize {
    if part > 0.0 { (whole / part) as usize } else { usize::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: Reading =
        Reading { batch_rows: 8192, batch_bytes: 2 << 20, readers: 1, max_readers: 1, ordered: false };

    fn stage(rows_in: u64, rows_out: u64, bytes_per_row: u64, ns_per_row: u64) -> StageStats {
        let busy_s = (rows_in.max(rows_out) * ns_per_row) as f64 * 1e-9;
        StageStats { rows_in, rows_out, bytes_out: rows_out * bytes_per_row, busy_s, ..Default::default() }
    }

    fn rows(stages: &[StageStats]) -> usize {
        READING.sized(stages).batch_rows
    }

    #[test]
    fn nothing_changes_before_the_first_measurement() {
        assert_eq!(rows(&[]), 8192);
        assert_eq!(rows(&[stage(0, 0, 0, 0), stage(0, 0, 0, 0)]), 8192);
    }

    #[test]
    fn narrow_rows_with_little_work_go_in_large_batches() {
        let source = stage(0, 1000, 8, 1);
        assert_eq!(rows(&[source.clone(), stage(1000, 1000, 16, 2)]), 8 * 8192);
        // 50 ns a row: 20,000 rows are a millisecond's work.
        let slower = rows(&[source.clone(), stage(1000, 1000, 16, 49)]);
        assert!((19_990..=20_000).contains(&slower), "{slower}");
        // The work of 8,192 rows outweighs the handover already.
        assert_eq!(rows(&[source.clone(), stage(1000, 1000, 16, 10_000)]), 8192);
        // 100 bytes at the widest stage: no more than the nominal bytes.
        assert_eq!(rows(&[source, stage(1000, 1000, 100, 1)]), (2 << 20) / 100);
    }

    #[test]
    fn rows_that_grow_go_in_small_batches() {
        // Row numbers become pictures of 150 KB: 64 MiB of them at once, not 1.2 GB.
        let stages = [stage(0, 1000, 8, 1), stage(1000, 1000, 150_000, 1_000_000)];
        assert_eq!(rows(&stages), (64 << 20) / 150_000);
        // One of four is kept, and each of those becomes eight.
        let stages = [stage(0, 1000, 8, 1), stage(1000, 250, 8, 1), stage(250, 2000, 150_000, 1_000_000)];
        assert_eq!(rows(&stages), (64 << 20) / 300_000);
        // A batch has at least one row.
        assert_eq!(rows(&[stage(0, 10, 1 << 40, 1)]), 1);
    }
}
