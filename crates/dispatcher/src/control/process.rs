//! What belongs to this process of the dispatcher: its start, its names, its operator, and whether it drains.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caju_runtime::{Clock, random_secret};
use caju_types::{Result, Secret};

use super::secrets;
use crate::config::DispatcherConfig;

/// One process of a dispatcher.
pub(super) struct Process {
    /// When it started, by the monotonic clock.
    pub(super) started: Duration,
    /// What calls of operators carry; without it such calls are refused.
    pub(super) operator: Option<Secret>,
    /// No epoch is opened any more.
    draining: AtomicBool,
    /// Milliseconds since the Unix epoch at its start, and names that it made since: they distinguish its names from those
    /// of processes before it.
    names: (u128, AtomicU64),
}

impl Process {
    /// # Errors
    /// Those of the operator's secret.
    pub(super) fn start(config: &DispatcherConfig, clock: &dyn Clock) -> Result<Self> {
        let operator = match (&config.operator_secret_file, &config.state_dir) {
            (Some(given), _) => Some(secrets::operator_secret(given)?),
            (None, Some(dir)) => Some(secrets::operator_secret_of(dir, clock.unix_time())?),
            (None, None) => None,
        };
        Ok(Self {
            started: clock.now(),
            operator,
            draining: AtomicBool::new(false),
            names: (clock.unix_time().as_millis(), AtomicU64::new(0)),
        })
    }

    /// Where a new journal begins to count. Milliseconds grow faster than a dispatcher gives out identifiers, and each
    /// admits 4096 of them, of which a random one is taken: a clock that was set back gives none out twice.
    pub(super) fn first_id(&self) -> Result<u64> {
        let random = random_secret()?.as_bytes().iter().fold(0u64, |sum, b| (sum << 1) ^ u64::from(*b));
        let id = u64::try_from(self.names.0 % (1 << 41)).unwrap_or(1) * 4096;
        Ok(id + random % 4096)
    }

    /// A name that was never given before.
    pub(super) fn unique_name(&self, prefix: &str) -> String {
        format!("{prefix}{:x}-{}", self.names.0, self.names.1.fetch_add(1, Ordering::Relaxed))
    }

    /// Distinguishes this process from those before it.
    pub(super) fn incarnation(&self) -> u64 {
        u64::try_from(self.names.0).unwrap_or(u64::MAX)
    }

    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}
