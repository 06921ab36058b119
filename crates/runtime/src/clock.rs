//! Time as a dependency, so that tests can set it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

/// A source of times. Code that needs the time holds an `Arc<dyn Clock>`.
#[async_trait]
pub trait Clock: Debug + Send + Sync {
    /// Monotonic time since an arbitrary origin.
    fn now(&self) -> Duration;
    /// Wall-clock time since the Unix epoch.
    fn unix_time(&self) -> Duration;
    /// Waits for a duration.
    async fn sleep(&self, duration: Duration);
}

/// The system's clock.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// The system's clock, shared.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self { origin: Instant::now() })
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    fn unix_time(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
