//! The settings that a request asks for: a new job gets them, and an existing job must have them.

use caju_engine::ShardBy;
use caju_proto::{mode_names, v1};
use caju_types::{Error, JobName, Result};

use super::context::Context;
use super::datasets::{Datasets, difference};
use super::policies::CachingRequest;
use super::priority::RequestedPriority;
use super::snapshots::Snapshots;
use super::usage::admit_job;
use super::{Txn, consumers, sharing, targets};
use crate::state::{
    Consumers, Dataset, Job, JobSpec, Mode, Policy, SaveTarget, Sharing, State, TargetWorkers, Update,
};

/// Jobs of one client alone are named so, and forgotten with their last iteration.
pub(super) const ANONYMOUS: &str = "anonymous-";

/// The processing mode of a message; none if it names none.
///
/// # Errors
/// `InvalidArgument` for a mode that is not known.
pub(super) fn mode_of_message(mode: i32) -> Result<Option<Mode>> {
    match v1::ProcessingMode::try_from(mode) {
        Ok(v1::ProcessingMode::Unspecified) => Ok(None),
        Ok(v1::ProcessingMode::Dynamic) => Ok(Some(Mode::Dynamic)),
        Ok(v1::ProcessingMode::Off) => Ok(Some(Mode::Off)),
        Ok(v1::ProcessingMode::File) => Ok(Some(Mode::File)),
        Ok(v1::ProcessingMode::Data) => Ok(Some(Mode::Data)),
        Ok(v1::ProcessingMode::FileOrData) => Ok(Some(Mode::FileOrData)),
        Ok(v1::ProcessingMode::Hint) => Ok(Some(Mode::Hint)),
        Err(_) => {
            Err(Error::invalid(format!("processing mode {mode} is not known; it is one of {}", mode_names())))
        }
    }
}

/// What a request asks of its job. What it leaves out is as the job has it, or the default of a new job.
struct RequestedJob {
    seed: Option<u64>,
    mode: Option<Mode>,
    target: Option<TargetWorkers>,
    consumers: Option<Consumers>,
    sharing: Option<Sharing>,
    priority: RequestedPriority,
    caching: CachingRequest,
    epochs: Option<u64>,
}

impl RequestedJob {
    /// # Errors
    /// `InvalidArgument` for names and numbers that mean nothing.
    fn parse(snapshots: &Snapshots, request: &v1::OpenIterationRequest, dataset: &Dataset) -> Result<Self> {
        let (mode, sharing) = (mode_of_message(request.mode)?, sharing::wanted(request)?);
        sharing::check_dataset(sharing, dataset, mode)?;
        Ok(Self {
            seed: request.has_seed.then_some(request.seed),
            mode,
            target: targets::wanted(request)?,
            consumers: consumers::wanted(request)?,
            sharing,
            priority: RequestedPriority::parse(request)?,
            caching: snapshots.wanted(request, dataset)?,
            epochs: (request.epochs > 0).then_some(request.epochs),
        })
    }

    /// Whether an existing job has the settings of the request.
    ///
    /// # Errors
    /// `AlreadyExists` that names the first difference, `InvalidArgument` for a policy that the job's shards do not permit.
    fn check(&self, state: &State, job: &Job, dataset: &Dataset) -> Result<()> {
        let name = &job.name;
        let Job { spec, .. } = job;
        if spec.dataset != dataset.id {
            let Some(theirs) = state.datasets.get(&spec.dataset) else {
                return Err(Error::already_exists(format!(
                    "job `{name}` reads the dataset {}, and this reader asks for {}; take another job name",
                    spec.dataset, dataset.id
                )));
            };
            if theirs.identity == dataset.identity {
                return Err(Error::already_exists(format!(
                    "job `{name}` reads the dataset under the id `{}`, and this reader asks for the same one under the id `{}`: \
                     a job reads one id; take another job name, or the same id",
                    theirs.id, dataset.id
                )));
            }
            return Err(Error::already_exists(format!(
                "job `{name}` reads the dataset with fingerprint {}, and this one has {}{}; take another job name",
                theirs.fingerprint,
                dataset.fingerprint,
                difference(theirs, dataset)
            )));
        }
        if let Some(seed) = self.seed.filter(|s| *s != spec.seed) {
            return Err(Error::already_exists(format!(
                "job `{name}` runs with seed {}, not {seed}; take another job name, or leave the seed out",
                spec.seed
            )));
        }
        if let Some(mode) = self.mode.filter(|m| *m != spec.mode) {
            return Err(Error::already_exists(format!(
                "job `{name}` runs in processing mode `{}`, not `{mode}`; take another job name",
                spec.mode
            )));
        }
        targets::check_job(job, self.target)?;
        consumers::check_job(job, self.consumers.as_ref())?;
        sharing::check_job(job, self.sharing)?;
        self.priority.check(job)?;
        self.check_caching(job)?;
        if let (Some(theirs), Some(epochs)) = (spec.epochs, self.epochs)
            && theirs != epochs
        {
            tracing::warn!(
                "a reader of job `{name}` plans for {epochs} epochs, and the job for {theirs}: the job's count stays"
            );
        }
        Ok(())
    }

    fn check_caching(&self, job: &Job) -> Result<()> {
        let (name, spec) = (&job.name, &job.spec);
        // The job's policy is the one that its shards permit, so that is compared.
        let asked = self.caching.policy.clone().map(|policy| policy_of(policy, spec.shard_by)).transpose()?;
        if let Some(policy) = asked.filter(|policy| *policy != spec.policy) {
            return Err(Error::already_exists(format!(
                "job `{name}` runs with policy `{}`, not `{policy}`; take another job name, or leave the policy out",
                spec.policy
            )));
        }
        // How parts are written is the job's: a reader that wants something else takes another job.
        let Some(encoding) = self.caching.encoding.filter(|e| spec.encoding != Some(*e)) else {
            return Ok(());
        };
        let theirs =
            spec.encoding.map_or("no encoding of its own".to_string(), |e| format!("encoding `{e}`"));
        Err(Error::already_exists(format!(
            "job `{name}` runs with {theirs}, not `{encoding}`; take another job name, or leave the encoding out"
        )))
    }

    /// The new job of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for parts that exclude each other.
    fn into_spec(
        self,
        request: &v1::OpenIterationRequest,
        dataset: &Dataset,
        shard_by: Option<ShardBy>,
        default_policy: impl Fn() -> Policy,
    ) -> Result<JobSpec> {
        let (mode, target) = (self.mode.unwrap_or(Mode::Dynamic), self.target.unwrap_or_default());
        consumers::check_dataset(self.consumers.as_ref(), dataset)?;
        let save = (!request.save_url.is_empty()).then(|| SaveTarget {
            url: request.save_url.clone(),
            chunk_bytes: (request.save_chunk_bytes > 0).then_some(request.save_chunk_bytes),
        });
        Ok(JobSpec {
            dataset: dataset.id.clone(),
            seed: self.seed.or(dataset.seed).unwrap_or(0),
            mode,
            anonymous: request.job.starts_with(ANONYMOUS) || save.is_some(),
            policy: policy_of(self.caching.policy.unwrap_or_else(default_policy), shard_by)?,
            encoding: self.caching.encoding,
            epochs: self.epochs,
            profile_only: request.profile_only,
            save,
            target,
            shard_by,
            consumers: self.consumers,
            sharing: self.sharing.unwrap_or_default(),
            priority: self.priority.of_new_job(),
        })
    }
}

/// The policy of a job for which this one is asked. Where shards are cut by rows, no task has whole splits, and nothing is stored.
///
/// # Errors
/// `InvalidArgument` for a policy that stores rows, where shards are cut by rows.
fn policy_of(asked: Policy, shard_by: Option<ShardBy>) -> Result<Policy> {
    match (shard_by, asked) {
        (Some(ShardBy::Data | ShardBy::Hint), Policy::Compute | Policy::Auto | Policy::Cachew) => {
            Ok(Policy::Compute)
        }
        (Some(by @ (ShardBy::Data | ShardBy::Hint)), policy) => Err(Error::invalid(format!(
            "policy `{policy}`: with shards by `{}` each worker has only some rows of each split, and nothing can be \
             stored; take policy `compute`, or processing mode `file` or `dynamic`",
            by.as_str()
        ))),
        (_, asked) => Ok(asked),
    }
}

/// What has to be known of a job before it is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfNewJob {
    /// What its shards divide; none outside the static modes.
    pub(super) shard_by: Option<ShardBy>,
}

/// The job of a request: the existing one, or a new one. `of_new_job` is none if the job was there when the request came.
///
/// # Errors
/// Those of [`RequestedJob`], `ResourceExhausted` for a job too many, and `Unavailable` for one that was forgotten since it was seen.
pub(super) fn get_or_create(
    datasets: &Datasets,
    snapshots: &Snapshots,
    txn: &mut Txn<'_>,
    request: &v1::OpenIterationRequest,
    dataset: &Dataset,
    of_new_job: Option<OfNewJob>,
) -> Result<Job> {
    let name = JobName(request.job.clone());
    let wanted = RequestedJob::parse(snapshots, request, dataset)?;
    let Context { clock, config, .. } = datasets.context.as_ref();
    datasets.usage().lock().use_job(&name, clock.now());
    if let Some(job) = txn.state.jobs.get(&name) {
        wanted.check(txn.state, job, dataset)?;
        return Ok(job.clone());
    }
    // Checked before the job is created: it could not be read.
    let (mode, target) = (wanted.mode.unwrap_or(Mode::Dynamic), wanted.target.unwrap_or_default());
    consumers::check_new(wanted.consumers.as_ref(), mode, target)?;
    targets::local_workers(txn.state, request, target)?;
    let shard_by = match of_new_job {
        Some(OfNewJob { shard_by }) => shard_by,
        None if !mode.is_static() => None,
        None => {
            return Err(Error::unavailable(format!(
                "job `{name}` was forgotten while an epoch of it was opened; open it again"
            )));
        }
    };
    let spec = wanted.into_spec(request, dataset, shard_by, || snapshots.default_policy())?;
    admit_job(&config.memory, &datasets.usage().lock(), txn)?;
    txn.apply(Update::JobCreated { job: name.clone(), spec });
    let missing = || Error::internal(format!("job `{name}` vanished while it was opened"));
    txn.state.jobs.get(&name).cloned().ok_or_else(missing)
}
