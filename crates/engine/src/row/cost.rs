//! The delay of one batch in the artificial stages `sleep` and `burn`, which experiments use to slow a pipeline down.

use std::sync::Arc;
use std::time::Duration;

use caju_pipeline::Cost;
use caju_runtime::thread_cpu_time;
use caju_types::Result;
use parking_lot::Mutex;

use crate::context::TaskContext;

/// The longest that `burn` holds a CPU thread: rows of other jobs are computed in between, and the burning ends soon after its
/// task.
const BURN_SLICE: Duration = Duration::from_millis(50);

/// The most that a `sleep` makes up for: sleeps end up to a few milliseconds late, more on a busy machine.
const MAX_LATE: Duration = Duration::from_millis(20);

/// Waits or burns for one batch of `rows` rows (`elements` elements below `batch`), one at a time per worker. `late` is how much
/// longer than due the last wait was: the next one is that much shorter.
pub(crate) async fn artificial_delay(
    ctx: &TaskContext,
    late: &Mutex<Duration>,
    cost: Cost,
    burn: bool,
    rows: usize,
    elements: usize,
    stats: usize,
) -> Result<()> {
    let each = |d: Duration, n: usize| d.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
    let due = match cost {
        Cost::PerRow(d) => each(d, rows),
        Cost::PerBatch(d) => each(d, elements),
    };
    let due = due.saturating_mul(ctx.slowdown);
    let _at_work = ctx.stats.busy.in_turn();
    let _turn = ctx.one_at_a_time.lock().await;
    if burn {
        let mut left = due;
        while !left.is_zero() {
            let slice = left.min(BURN_SLICE);
            let counters = Arc::clone(&ctx.stats);
            let burn = move || {
                counters.stage(stats).timed(|| {
                    let end = thread_cpu_time() + slice;
                    while thread_cpu_time() < end {
                        std::hint::spin_loop();
                    }
                });
            };
            ctx.pool.run(burn).await?;
            left -= slice;
        }
    } else {
        let _serving = ctx.stats.stage(stats).serving();
        let owed = *late.lock();
        let began = ctx.clock.now();
        if due > owed {
            ctx.clock.sleep(due - owed).await;
        }
        let took = ctx.clock.now().saturating_sub(began);
        *late.lock() = (took + owed).saturating_sub(due).min(MAX_LATE);
    }
    Ok(())
}
