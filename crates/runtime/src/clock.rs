//! Time as a dependency, so that tests decide what time it is.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

/// Where times come from. Rooms hold an `Arc<dyn Clock>`; nothing else reads the time of day.
#[async_trait]
pub trait Clock: Debug + Send + Sync {
    /// Monotonic time since an arbitrary origin.
    fn now(&self) -> Duration;
    /// Wall-clock time since the Unix epoch, for records that people read.
    fn unix_time(&self) -> Duration;
    /// Waits.
    async fn sleep(&self, duration: Duration);
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// The machine's clock, shared.
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
