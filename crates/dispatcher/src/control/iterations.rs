//! The iteration that a request reads: the one that runs, or a new one.

use std::sync::Arc;

use caju_proto::v1;
use caju_types::{Error, IterationId, ReadingBases, Result};

use super::context::Context;
use super::reader_calls::ReaderCalls;
use super::restored_beginning::{self, RestoredBeginning};
use super::snapshots::Snapshots;
use super::usage::{admit_epoch, admit_reader};
use super::{Txn, attempts, consumers, reattach, resume, shards};
use crate::state::{Attempt, Iteration, Job, Mode, Resume, Update};

/// What a reader has restored.
pub(super) struct Restored<'a> {
    /// States within the epoch.
    pub(super) states: Option<Resume>,
    /// Which readers of the epoch called, as far as it depends on them what becomes of it.
    pub(super) others: &'a ReaderCalls,
    /// The beginning of the epoch.
    pub(super) beginning: Option<&'a RestoredBeginning>,
    /// An iteration that has failed, and whose readers are all silent.
    pub(super) deserted: Option<IterationId>,
}

/// Where an epoch begins.
pub(super) enum Begin {
    /// Behind states.
    Behind(Box<Resume>),
    /// At its beginning. The launch of the user's program that restored the beginning, if one did.
    Restarted(Option<Attempt>),
}

/// Opens iterations.
pub(super) struct Iterations {
    pub(super) context: Arc<Context>,
    snapshots: Arc<Snapshots>,
}

impl Iterations {
    pub(super) fn new(context: Arc<Context>, snapshots: Arc<Snapshots>) -> Self {
        Self { context, snapshots }
    }

    /// The iteration to join; none if a Flight reader comes after its end.
    pub(super) fn get_or_create(
        &self,
        txn: &mut Txn<'_>,
        request: &v1::OpenIterationRequest,
        job: &Job,
        at_ms: u64,
        Restored { states: resume, others, beginning, deserted }: Restored<'_>,
    ) -> Result<Option<IterationId>> {
        let (name, epoch) = (&job.name, request.epoch);
        let known = txn.state.find_iteration(name, epoch);
        if let Some(iteration) = known.filter(|i| i.opened_by(&request.request_id).is_some()) {
            // The answer to this call was lost.
            return Ok(Some(iteration.id));
        }
        let attempt = known.and_then(Iteration::attempt).cloned();
        let bases = known.map(Iteration::bases).unwrap_or_default();
        let known = known.map(|i| i.id);
        if let (Some(id), Some(given)) = (known, &resume)
            && let Some(joined) = resume::join(
                txn,
                id,
                given,
                resume::Others {
                    is_alive: |client| {
                        !others.silent.contains(&client) && self.context.reports.called_recently(id, client)
                    },
                    any_called: others.called_in == Some(id),
                },
                || {
                    let bases = merged(&bases, &given.bases);
                    self.check_opening(job, Some(&Resume { bases, ..given.clone() }))
                },
            )?
        {
            return Ok(Some(joined));
        }
        if let Some(given) = resume.as_ref().filter(|r| r.reattached) {
            reattach::check_over(job, epoch, given)?;
        }
        if let Some(mut given) = resume {
            if let (None, Some(attempt)) = (known, given.attempt.as_deref()) {
                attempts::check_over(job, epoch, attempt)?;
            }
            if let (Some(own), Some(before)) = (given.attempt.as_mut(), &attempt) {
                own.replace(before);
            }
            // What readers took since the state was taken is read again, whatever became of it.
            given.bases = merged(&bases, &given.bases);
            // The number of consumers is known.
            given.awaits_unknown = given.reattached && request.num_consumers == 0;
            return self.open_new(txn, job, epoch, at_ms, Begin::Behind(Box::new(given))).map(Some);
        }
        let iteration = known.and_then(|id| txn.state.iterations.get(&id));
        let (begins_again, mut by) = match beginning {
            Some(given) => {
                let begins_again = restored_beginning::begins_again(job, epoch, iteration, given)?;
                (begins_again, given.attempt.clone())
            }
            None => {
                let given = attempts::of_consumer(request)?;
                iteration.map_or(Ok(()), |known| attempts::check_not_replaced(known, given.as_ref()))?;
                (false, given)
            }
        };
        if let (Some(own), Some(before)) = (&mut by, &attempt) {
            own.replace(before);
        }
        if begins_again {
            if let Some(id) = known {
                self.check_opening(job, None)?;
                resume::end_reading(txn, id);
            }
            return self.open_new(txn, job, epoch, at_ms, Begin::Restarted(by)).map(Some);
        }
        if let Some(id) = known.filter(|_| beginning.is_some()) {
            restored_beginning::refuse_fallback(txn, id, request)?;
        }
        if let Some(iteration) = txn.state.find_iteration(name, epoch) {
            let id = iteration.id;
            match &iteration.failure {
                None => return Ok(Some(id)),
                Some(failure) if !iteration.members.is_empty() && deserted != Some(id) => {
                    return Err(failure.into());
                }
                // The other tickets of its readers are for shards, of which some have been read.
                Some(failure) if request.flight && iteration.flight_readers && iteration.mode.is_static() => {
                    return Err(failure.into());
                }
                // No reader is left that saw it fail: a new attempt begins.
                Some(_) => txn.apply(Update::IterationDropped { iteration: id }),
            }
        }
        if job.finished.contains(epoch) {
            // Under `dynamic` the other endpoints had all rows; under `off` this one's are its own, and which
            // endpoints were read is forgotten.
            let over = request.flight && job.spec.mode == Mode::Dynamic;
            return if over { Ok(None) } else { Err(attempts::read_already(name, epoch)) };
        }
        if job.incomplete.contains(epoch) {
            return Err(Error::failed_precondition(format!(
                "job `{name}` epoch {epoch} ended incomplete: rows of it went to readers that vanished, or to none; take \
                 another job name, or read another epoch"
            )));
        }
        if job.abandoned.contains(epoch) {
            return Err(Error::failed_precondition(format!(
                "job `{name}` epoch {epoch}: all its readers left it before its end, and it was dropped; take \
                 another job name"
            )));
        }
        self.open_new(txn, job, epoch, at_ms, Begin::Restarted(by)).map(Some)
    }

    /// Opens an epoch of a job.
    ///
    /// # Errors
    /// `InvalidArgument` for states from which it cannot go on, `NotFound` without the shards that it needs.
    pub(super) fn open_new(
        &self,
        txn: &mut Txn<'_>,
        job: &Job,
        epoch: u64,
        at_ms: u64,
        begin: Begin,
    ) -> Result<IterationId> {
        let draws = match &begin {
            Begin::Behind(resume) => resume.draws.as_deref().cloned(),
            Begin::Restarted(_) => None,
        };
        let (resume, attempt) = match begin {
            Begin::Behind(resume) => (Some(resume), None),
            Begin::Restarted(attempt) => (None, attempt.map(Box::new)),
        };
        let name = &job.name;
        if !txn.state.jobs.contains_key(name) {
            // Dropping the failed iteration took an anonymous job with it.
            txn.apply(Update::JobCreated { job: name.clone(), spec: job.spec.clone() });
        }
        admit_reader(&self.context.config.memory, txn.state)?;
        admit_epoch(&self.context.config.memory, txn, name)?;
        self.check_opening(job, resume.as_deref())?;
        let iteration = IterationId(txn.state.next_id);
        let of_epoch = shards::of_epoch(&self.context.config, job, resume.as_deref())?;
        let job_name = name.clone();
        txn.apply(Update::IterationOpened {
            iteration,
            job: job_name,
            epoch,
            at_ms,
            num_shards: of_epoch.count,
            num_workers: of_epoch.workers,
            resume,
            attempt,
        });
        let plan = match txn.state.datasets.get(&job.spec.dataset) {
            Some(dataset) => self.snapshots.first_plan(job, dataset, draws.as_ref())?,
            None => None,
        };
        let uses_plan = txn.state.iterations.get(&iteration).is_some_and(|i| i.caching);
        if plan.is_some() && uses_plan {
            txn.apply(Update::Planned { iteration, plan });
        }
        Ok(iteration)
    }

    /// Whether an epoch can be opened behind these states, or at its beginning. Another reading of it ends only if it can.
    ///
    /// # Errors
    /// `InvalidArgument` for states from which it cannot go on, `NotFound` without the shards that it needs.
    fn check_opening(&self, job: &Job, resume: Option<&Resume>) -> Result<()> {
        shards::of_epoch(&self.context.config, job, resume)?;
        match resume {
            Some(resume) => {
                reattach::check_bases(resume)?;
                consumers::check_steps(job.spec.consumers.as_ref(), &resume.steps)
            }
            None => Ok(()),
        }
    }
}

/// What users had got by an epoch's reading and by states.
fn merged(of_reading: &ReadingBases, of_states: &ReadingBases) -> ReadingBases {
    let mut all = of_reading.clone();
    all.extend(of_states);
    all
}
