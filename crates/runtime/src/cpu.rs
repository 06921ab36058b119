//! A pool of threads for CPU work, separate from the async runtime's threads (design habit 13).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use caju_types::{Error, Result};
use crossbeam_channel::{Receiver, Sender, bounded};
use tokio::sync::oneshot;

use crate::panics::panic_text;
use crate::process::thread_cpu_time;
use crate::simulation::is_simulated;

type Work = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The thread's CPU time at the end of its last piece of work.
    static LAST_END: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// CPU time that this pool thread spent since its last piece of work: delivering the result, and taking the next piece.
/// Called at the start of a piece of work, it is the overhead of using the pool for that piece.
pub fn handover_cpu_time() -> Duration {
    thread_cpu_time().saturating_sub(LAST_END.get())
}

/// A fixed number of threads that run closures in the order of submission. Clones share the threads.
#[derive(Clone, Debug)]
pub struct CpuPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    sender: Option<Sender<Work>>,
    threads: Vec<JoinHandle<()>>,
    /// The number of threads that the pool counts as; a simulation has none.
    count: usize,
}

/// Closures that may be queued. A further submission blocks its submitter.
const MAX_QUEUED: usize = 4096;

impl CpuPool {
    /// A pool of `threads` threads (at least one).
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no thread.
    pub fn new(threads: usize) -> Result<Self> {
        let count = threads.max(1);
        if is_simulated() {
            return Ok(Self { inner: Arc::new(Inner { sender: None, threads: Vec::new(), count }) });
        }
        let (sender, receiver): (Sender<Work>, Receiver<Work>) = bounded(MAX_QUEUED);
        let threads = (0..count)
            .map(|i| {
                let receiver = receiver.clone();
                std::thread::Builder::new()
                    .name(format!("caju-cpu-{i}"))
                    .spawn(move || {
                        for work in receiver {
                            work();
                        }
                    })
                    .map_err(|e| {
                        Error::exhausted(format!("cannot start CPU thread {i}: {e}; lower --cpu-threads"))
                    })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { inner: Arc::new(Inner { sender: Some(sender), threads, count }) })
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.inner.count
    }

    /// Runs a closure on the pool. A panic in it becomes an `Internal` error. If the future is dropped, the closure runs to
    /// its end and its result is dropped.
    pub fn run<T, F>(&self, work: F) -> impl Future<Output = Result<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (tx, rx) = oneshot::channel();
        let job: Work = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            LAST_END.set(thread_cpu_time());
            // The receiver is gone if its task was cancelled.
            drop(tx.send(result));
        });
        let accepted = match &self.inner.sender {
            Some(sender) => sender.send(job).is_ok(),
            None if is_simulated() => {
                job();
                true
            }
            None => false,
        };
        async move {
            if !accepted {
                return Err(Error::cancelled("the CPU pool has stopped"));
            }
            match rx.await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(panic)) => {
                    Err(Error::internal(format!("panic in a CPU task: {}", panic_text(&*panic))))
                }
                Err(_) => Err(Error::cancelled("the CPU pool stopped before the task ran")),
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.sender = None;
        for thread in self.threads.drain(..) {
            // The last handle may be dropped on a pool thread, which cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                drop(thread.join());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn runs_and_survives_panics() {
        let pool = CpuPool::new(2).unwrap();
        assert_eq!(pool.run(|| 6 * 7).await.unwrap(), 42);
        let e = pool.run(|| -> u32 { panic!("boom") }).await.unwrap_err();
        assert!(e.message().contains("boom"));
        assert_eq!(pool.run(|| 1).await.unwrap(), 1);
    }
}
