//! Waiting for calls of readers that may be dead.

use std::collections::BTreeSet;

use caju_types::{ClientId, IterationId};

use super::peer_reports::PeerReports;

/// How often a call of silent readers is looked for within a heartbeat.
const POLLS_PER_HEARTBEAT: u32 = 4;

/// Which readers called while a request waited for them.
#[derive(Debug, Default)]
pub(super) struct ReaderCalls {
    /// Those that have not called.
    pub(super) silent: BTreeSet<ClientId>,
    /// Readers of this iteration have called, or left it.
    pub(super) called_in: Option<IterationId>,
}

impl PeerReports {
    /// Waits until one of these readers calls. False if all of them have been silent for [`silence`](crate::config::Timers::silence).
    pub(super) async fn any_calls(&self, id: IterationId, clients: &[ClientId]) -> bool {
        self.calls(id, clients, |silent| silent.len() < clients.len()).await.silent.len() < clients.len()
    }

    /// Waits until each of these readers has called, for [`silence`](crate::config::Timers::silence) at most.
    pub(super) async fn await_calls(&self, id: IterationId, clients: &[ClientId]) -> ReaderCalls {
        self.calls(id, clients, BTreeSet::is_empty).await
    }

    /// Waits until enough is known of who calls, for [`silence`](crate::config::Timers::silence) at most.
    async fn calls(
        &self,
        id: IterationId,
        clients: &[ClientId],
        is_enough: impl Fn(&BTreeSet<ClientId>) -> bool,
    ) -> ReaderCalls {
        let last_calls = || -> Vec<u64> {
            let reports = self.lock();
            clients.iter().map(|client| reports.last_call(id, *client)).collect()
        };
        let heartbeat = self.timers.heartbeat;
        let until = self.now() + self.timers.silence();
        let last_leave = || self.lock().last_leave(id);
        let (before, leave_before) = (last_calls(), last_leave());
        let mut any_called = false;
        loop {
            let now = last_calls();
            any_called |=
                before.iter().zip(&now).any(|(before, now)| before < now) || last_leave() > leave_before;
            let same = clients.iter().zip(before.iter().zip(&now)).filter(|(_, (before, now))| before == now);
            let silent = same.map(|(client, _)| *client).collect();
            if is_enough(&silent) || self.now() >= until {
                return ReaderCalls { silent, called_in: any_called.then_some(id) };
            }
            self.clock().sleep(heartbeat / POLLS_PER_HEARTBEAT).await;
        }
    }
}
