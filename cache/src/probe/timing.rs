//! CPU times of work on threads that may block, and of futures.

use std::time::Duration;

use caju_runtime::thread_cpu_time;
use caju_types::Result;
use futures::future::try_join_all;

/// Does the same work on `threads` threads concurrently. Gives the count of one of them, and the median of all times.
pub(super) async fn concurrently<W>(spent: &mut Duration, threads: usize, work: W) -> Result<(u64, Duration)>
where
    W: Fn() -> Result<(u64, Vec<Duration>)> + Send + Sync + Clone + 'static,
{
    let each = (0..threads.max(1)).map(|_| {
        let work = work.clone();
        async move {
            let mut spent = Duration::ZERO;
            let done = blocking(&mut spent, work).await;
            done.map(|done| (spent, done))
        }
    });
    let (mut count, mut times) = (0, Vec::new());
    for (cpu, (rows, each)) in try_join_all(each).await? {
        *spent += cpu;
        count = rows;
        times.extend(each);
    }
    times.sort_unstable();
    Ok((count, times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or_default()))
}

/// Does work on a thread that may block, and adds its CPU time to `spent`.
pub(super) async fn blocking<T: Send + 'static>(
    spent: &mut Duration,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let timed = move || {
        let start = thread_cpu_time();
        let done = work();
        (done, thread_cpu_time().saturating_sub(start))
    };
    let (done, cpu) = caju_runtime::blocking("a probe", timed).await?;
    *spent += cpu;
    done
}

/// Runs a future, and adds the CPU time of its polls to `spent`.
pub(super) async fn polled<F: Future>(spent: &mut Duration, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let start = thread_cpu_time();
        let poll = future.as_mut().poll(cx);
        *spent += thread_cpu_time().saturating_sub(start);
        poll
    })
    .await
}
