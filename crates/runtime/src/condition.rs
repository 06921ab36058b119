//! Waiting until something is so.

use tokio::sync::Notify;

/// A condition variable for tasks: a task that changes the awaited state notifies the waiters, and they check it again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let (readers, changed) = (AtomicUsize::new(1), caju_runtime::Condition::default());
/// let gone = changed.wait_until(|| readers.load(Ordering::Acquire) == 0);
/// let leave = async {
///     readers.store(0, Ordering::Release);
///     changed.notify_all();
/// };
/// tokio::join!(gone, leave);
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Condition(Notify);

impl Condition {
    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_waiters();
    }

    /// Waits until `condition` is true. It is asked at once, and after each notification. Cancelling the wait loses nothing.
    pub async fn wait_until(&self, condition: impl Fn() -> bool) {
        loop {
            let changed = self.0.notified();
            tokio::pin!(changed);
            // From here on no notification is missed, also one that comes while the condition is asked.
            changed.as_mut().enable();
            if condition() {
                return;
            }
            changed.await;
        }
    }
}
