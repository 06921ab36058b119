//! The artificial stages `sleep` and `burn`, which experiments use to slow a pipeline down.

use std::sync::Arc;
use std::time::Duration;

use caju_pipeline::Cost;
use caju_runtime::thread_cpu_time;
use caju_types::Result;

use crate::context::TaskContext;

/// Waits or burns for one batch of `rows` rows (`elements` elements below `batch`), one at a time per worker.
pub(crate) async fn pay(
    ctx: &TaskContext,
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
    let _turn = ctx.one_at_a_time.lock().await;
    if burn {
        let counters = Arc::clone(&ctx.stats);
        ctx.pool
            .run(move || {
                counters.stage(stats).timed(|| {
                    let end = thread_cpu_time() + due;
                    while thread_cpu_time() < end {
                        std::hint::spin_loop();
                    }
                });
            })
            .await?;
    } else {
        let _serving = ctx.stats.stage(stats).serving();
        ctx.clock.sleep(due).await;
    }
    Ok(())
}
