//! Opening an epoch again at a dispatcher that lost its state.
//!
//! The reader stops handing out elements, reports which rows its user has, and reads the remaining ones: a new iteration
//! continues behind the states of all readers of the lost one, as it does behind states that a user gives. Rows that had
//! arrived and were not handed to the user are dropped, and are sent again.

use std::collections::BTreeSet;

use caju_proto::{Bytes, v1};
use caju_types::{ClientId, IterationId, Result};

use crate::shared::Shared;
use crate::state::ReaderState;
use crate::taken::Taken;

/// How an epoch is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Behind the rows that the user has taken: the dispatcher asks for it.
    Behind,
    /// As at first: the dispatcher does not know this consumer any more, and its user has taken nothing.
    AtFirst,
}

/// What is needed to open the epoch of a reader again.
#[derive(Debug, Clone)]
pub(crate) struct Reopening {
    /// The request with which the epoch was opened, with the job's settings.
    request: v1::OpenIterationRequest,
    /// The position at which the reader was opened.
    origin: ReaderState,
    is_resumed: bool,
}

impl Reopening {
    pub(crate) fn new(
        request: v1::OpenIterationRequest,
        opened: &v1::OpenIterationResponse,
        origin: ReaderState,
        is_resumed: bool,
    ) -> Self {
        let or_own = |jobs: &str, own: String| if jobs.is_empty() { own } else { jobs.to_string() };
        let request = v1::OpenIterationRequest {
            // The dataset's name may be lost, too.
            dataset_id: String::new(),
            definition_json: or_own(&request.definition_json, opened.definition_json.clone()),
            job: opened.job.clone(),
            has_full_job: true,
            seed: opened.seed,
            has_seed: true,
            mode: opened.mode,
            policy: or_own(&opened.policy, request.policy),
            encoding: or_own(&opened.encoding, request.encoding),
            sharing: or_own(&opened.sharing, request.sharing),
            priority: opened.priority.or(request.priority),
            weight: opened.weight.or(request.weight),
            target_workers: match opened.target_workers() {
                v1::TargetWorkers::Unspecified => request.target_workers,
                _ => opened.target_workers,
            },
            ..request
        };
        Self { request, origin, is_resumed }
    }

    /// Whether the epoch can be opened again. A save is driven by the dispatcher, which begins it again.
    pub(crate) fn is_possible(&self) -> bool {
        self.request.save_url.is_empty()
    }

    /// Whether the epoch was opened again before.
    pub(crate) fn is_reattached(&self) -> bool {
        self.request.reattached_client != 0
    }

    /// The request that opens the epoch as at first, for a consumer whose user has taken nothing: the epoch began again without it
    /// while it was silent. None for a reader that began behind states.
    pub(crate) fn at_first(&self, shared: &Shared) -> Option<(v1::OpenIterationRequest, ReaderState)> {
        let request = v1::OpenIterationRequest {
            local_workers: shared.config.local.addresses(),
            // It joins the others, and never begins the epoch again.
            restored_beginning: false,
            after_iteration: 0,
            ..self.request.clone()
        };
        (!self.is_resumed).then(|| (request, self.origin.clone()))
    }

    /// The request that opens the epoch again, and the position of the reader then.
    ///
    /// # Errors
    /// `Internal` if what was taken does not fit together.
    pub(crate) fn again(
        &self,
        shared: &Shared,
        taken: &Taken,
        client: (ClientId, &Bytes),
        iteration: IterationId,
    ) -> Result<(v1::OpenIterationRequest, ReaderState)> {
        let (client, secret) = client;
        let local_workers = shared.config.local.addresses();
        let resumed = shared.facts.resumed();
        if self.is_resumed && resumed.is_none() {
            // The epoch had not begun: the states of other readers were missing.
            return Ok((
                v1::OpenIterationRequest { local_workers, ..self.request.clone() },
                self.origin.clone(),
            ));
        }
        let mut rows = taken.all(resumed.as_deref())?;
        let (listed, _) = shared.facts.listed_and_readers();
        listed.into_iter().for_each(|(feed, listed)| rows.set_listed(feed, listed));
        let mut all_readers = shared.facts.holders();
        all_readers.insert(client.0);
        let consumer = (self.request.num_consumers > 0).then_some(self.request.consumer_index);
        let state = ReaderState {
            iteration: iteration.0,
            behind: match self.is_resumed {
                true => self.origin.behind_these(shared.facts.readings()),
                false => BTreeSet::new(),
            },
            readers: [client.0].into(),
            all_readers,
            elements: self.origin.elements.saturating_add(taken.elements()),
            rows: self.origin.rows.saturating_add(taken.num_rows()),
            exhausted: false,
            taken: rows,
            steps: self.origin.steps_after(consumer, shared.facts.steps(), taken.elements()),
            bases: shared.facts.bases(&self.origin.bases),
            draws: shared.facts.draws(),
            ..self.origin.clone()
        };
        let request = v1::OpenIterationRequest {
            states: vec![state.to_proto()],
            num_states: 0,
            states_of_all: false,
            restored_beginning: false,
            after_iteration: 0,
            reattached_client: client.0,
            client_secret: secret.clone(),
            local_workers,
            ..self.request.clone()
        };
        Ok((request, state))
    }
}
