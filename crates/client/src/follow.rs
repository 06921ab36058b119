//! Following the order of rounds, which the dispatcher gives.

use std::sync::Arc;
use std::time::Duration;

use caju_proto::{Bytes, v1};
use caju_types::{ClientId, Error, IterationId, TaskId};
use caju_wire::{Dispatcher, DispatcherLink};

use crate::rounds::Placed;
use crate::shared::Shared;

/// The shortest interval between two reports of what has arrived: elements that come faster are reported together.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(2);
/// The pause after a call that the dispatcher did not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Who a consumer is to the dispatcher.
pub(crate) struct Identity {
    pub(crate) client: ClientId,
    pub(crate) iteration: IterationId,
    pub(crate) secret: Bytes,
}

/// Passes elements on in the order of rounds, for ever. Without rounds it does nothing.
pub(crate) async fn follow(
    link: DispatcherLink,
    shared: Arc<Shared>,
    own: Identity,
    poll: Duration,
) -> Error {
    let Some(staging) = &shared.rounds else { return std::future::pending().await };
    loop {
        let request = v1::NextRoundsRequest {
            client_id: own.client.0,
            iteration_id: own.iteration.0,
            secret: own.secret.clone(),
            wait_ms: u64::try_from(poll.as_millis()).unwrap_or(u64::MAX),
            ..staging.report()
        };
        let number = request.request_no;
        let call = |mut d: Dispatcher| async move { d.next_rounds(request).await };
        let news = async {
            tokio::time::sleep(MIN_REPORT_INTERVAL).await;
            staging.changed().await;
        };
        tokio::select! {
            biased;
            answer = link.call(poll, call) => match answer {
                // A heartbeat says why.
                Ok(answer) if answer.unknown => tokio::time::sleep(RETRY_PAUSE).await,
                Ok(answer) => match staging.accept(&answer) {
                    Ok(placed) => {
                        shared.pass_on(placed);
                        staging.passed_on(number);
                    }
                    Err(error) => return error,
                },
                Err(error) => {
                    tracing::debug!(%error, "the order of rounds is not known");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            },
            () = news => {}
        }
    }
}

impl Shared {
    /// Elements that have their place go to the user.
    fn pass_on(&self, placed: Vec<Placed>) {
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
