//! Following the order of rounds, which the dispatcher gives.

use std::sync::Arc;
use std::time::Duration;

use caju_proto::{Bytes, v1};
use caju_types::{ClientId, Error, IterationId, TaskId};
use caju_wire::{Dispatcher, DispatcherLink};

use crate::rounds::{Asked, OrderedElement};
use crate::shared::Shared;

/// The shortest interval between two reports of what has arrived: elements that come faster are reported together.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(2);
/// The pause before the order of rounds is asked for again: after a call that failed, and while other consumers have yet to
/// report. It is shorter than that of heartbeats, as every consumer of the job waits for the order.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Who a consumer is to the dispatcher.
pub(crate) struct Identity {
    pub(crate) client: ClientId,
    pub(crate) iteration: IterationId,
    pub(crate) secret: Bytes,
}

/// Passes elements on in the order of rounds, until that fails. Without rounds it does nothing.
///
/// One call waits at the dispatcher for rounds. What arrives meanwhile is reported by calls of their own: a call that is
/// broken off costs more than one that is answered.
pub(crate) async fn follow(
    link: DispatcherLink,
    shared: Arc<Shared>,
    own: Identity,
    poll: Duration,
) -> Error {
    let Some(staging) = &shared.rounds else { return std::future::pending().await };
    let call = |wait: Duration| {
        let request = v1::NextRoundsRequest {
            client_id: own.client.0,
            iteration_id: own.iteration.0,
            secret: own.secret.clone(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            ..staging.report()
        };
        let at = Asked::of(&request);
        let link = link.clone();
        async move { (at, link.call(wait, |mut d: Dispatcher| async move { d.next_rounds(request).await }).await) }
    };
    loop {
        let waiting = call(poll);
        tokio::pin!(waiting);
        loop {
            let news = async {
                tokio::time::sleep(MIN_REPORT_INTERVAL).await;
                if staging.is_settling() {
                    // The answer was given before all consumers had reported: it is asked for again.
                    let _ = tokio::time::timeout(RETRY_PAUSE, staging.changed()).await;
                } else {
                    staging.changed().await;
                }
            };
            let (at, answer, is_over) = tokio::select! {
                biased;
                (at, answer) = &mut waiting => (at, answer, true),
                () = news => {
                    let (at, answer) = call(Duration::ZERO).await;
                    (at, answer, false)
                }
            };
            match answer {
                // A heartbeat says why.
                Ok(answer) if answer.unknown => tokio::time::sleep(RETRY_PAUSE).await,
                Ok(answer) => match staging.accept(at, &answer) {
                    Ok(Some(placed)) => {
                        shared.pass_on(placed);
                        staging.passed_on(at, &answer);
                    }
                    Ok(None) => {}
                    Err(error) => return error,
                },
                Err(error) => {
                    tracing::debug!(%error, "the order of rounds is not known");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
            if is_over {
                break;
            }
        }
    }
}

impl Shared {
    /// Elements that have their place go to the user.
    fn pass_on(&self, placed: Vec<OrderedElement>) {
        if let Some((_, _, arrived)) = placed.first() {
            self.recorder.waited_for_others(*arrived);
        }
        for (task, delivery, _) in placed {
            self.admit(task, delivery);
        }
    }

    /// Whether it is known what was passed on of a lost task.
    pub(crate) fn is_settled(&self, task: TaskId) -> bool {
        self.rounds.as_ref().is_none_or(|rounds| rounds.is_settled(task))
    }

    /// Waits until a lost task is settled; for ever without rounds.
    pub(crate) async fn settled(&self) {
        match &self.rounds {
            Some(rounds) => rounds.settled().await,
            None => std::future::pending().await,
        }
    }
}
