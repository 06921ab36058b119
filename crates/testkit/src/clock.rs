//! A clock that tests control.

use std::time::Duration;

use async_trait::async_trait;
use caju_runtime::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A clock that advances only when a test says so.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Mutex<Duration>,
    moved: Notify,
}

impl ManualClock {
    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        *self.now.lock() += by;
        self.moved.notify_waiters();
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock()
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.now()
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.now() + duration;
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.now() >= until {
                return;
            }
            moved.await;
        }
    }
}
