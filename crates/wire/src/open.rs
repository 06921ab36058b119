//! Opening an epoch, which may wait for boundaries of `bucket_by_length` that a worker learns.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{Error, Result, format_duration};
use tokio::time::Instant;

use crate::link::{Dispatcher, DispatcherLink};

/// How long what an epoch needs is waited for.
#[derive(Debug, Clone, Copy)]
pub struct OpenTimeouts {
    /// An unavailable dispatcher.
    pub dispatcher: Duration,
    /// The dispatcher's answer.
    pub open: Duration,
    /// A worker that learns boundaries.
    pub worker: Duration,
    /// The boundaries.
    pub learning: Duration,
}

/// The longest that one call waits for boundaries.
const POLL: Duration = Duration::from_secs(5);
/// The shortest wait that is asked for.
const MIN_POLL: Duration = Duration::from_millis(1);

/// How long boundaries are waited for yet.
fn left(within: &OpenTimeouts, asked: Instant, unassigned: Option<Instant>) -> Duration {
    let learning = within.learning.saturating_sub(asked.elapsed());
    unassigned.map_or(learning, |since| learning.min(within.worker.saturating_sub(since.elapsed())))
}

impl DispatcherLink {
    /// Opens an epoch, and asks again while boundaries are learnt.
    ///
    /// # Errors
    /// As [`DispatcherLink::call`]; `Unavailable` if no worker learns them in time, `DeadlineExceeded` if a worker takes too
    /// long.
    pub async fn open_iteration(
        &self,
        request: &v1::OpenIterationRequest,
        within: &OpenTimeouts,
    ) -> Result<v1::OpenIterationResponse> {
        let asked = Instant::now();
        // No worker may learn them yet.
        let mut unassigned = Some(asked);
        loop {
            let wait = POLL.min(left(within, asked, unassigned)).max(MIN_POLL);
            let call = |mut d: Dispatcher| {
                let boundaries_wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                let request = v1::OpenIterationRequest { boundaries_wait_ms, ..request.clone() };
                async move { d.open_iteration(request).await }
            };
            let opened = self.retry(within.dispatcher, within.open, call).await?;
            let Some(learning) = &opened.learning else { return Ok(opened) };
            unassigned = learning.worker.is_empty().then(|| unassigned.unwrap_or(asked));
            self.check(learning, (asked, unassigned), within)?;
            tracing::info!(stage = learning.stage, worker = learning.worker, "boundaries are being learnt");
        }
    }

    fn check(
        &self,
        learning: &v1::Learning,
        (asked, unassigned): (Instant, Option<Instant>),
        within: &OpenTimeouts,
    ) -> Result<()> {
        let v1::Learning { stage, worker } = learning;
        if unassigned.is_some_and(|since| since.elapsed() >= within.worker) {
            return Err(Error::unavailable(format!(
                "{stage}: no worker learns its boundaries: none of this version registered at the dispatcher at {0} within \
                 {1}; start one with `caju worker --dispatcher {0}`, or give the boundaries as a list",
                self.address(),
                format_duration(within.worker)
            )));
        }
        if asked.elapsed() >= within.learning {
            return Err(Error::deadline(format!(
                "{stage}: {worker} has not learnt its boundaries within {}; let it read fewer `rows`, or give the \
                 boundaries as a list",
                format_duration(within.learning)
            )));
        }
        Ok(())
    }
}
