//! Tasks as messages describe them.

use caju_autocache::{PlanRecord, SplitModes, is_last_reading};
use caju_proto::v1;
use caju_types::{Error, Result, Uneven};

use crate::config::DispatcherConfig;
use crate::state::{Feed, FeedId, Iteration, Job, Mode, Sharing, State, Task};

/// What a worker has to know of a task.
///
/// # Errors
/// `Internal` if the state lacks what a task belongs to.
pub(super) fn task_def(
    config: &DispatcherConfig,
    state: &State,
    iteration: &Iteration,
    task: &Task,
    record: Option<&PlanRecord>,
) -> Result<v1::TaskDef> {
    let lost = |what: &str| Error::internal(format!("{}: its {what} is not known", iteration.describe()));
    let dataset = state.datasets.get(&iteration.dataset).ok_or_else(|| lost("dataset"))?;
    let job = state.jobs.get(&iteration.job).ok_or_else(|| lost("job"))?;
    let worker = state.workers.get(&task.worker).ok_or_else(|| lost("worker"))?;
    let worker_slot = if iteration.mode == Mode::Off { task.feed.0 } else { worker.slot };
    let shard = iteration.shard_of(task.feed);
    Ok(v1::TaskDef {
        task_id: task.id.0,
        iteration_id: iteration.id.0,
        job: job.name.0.clone(),
        epoch: iteration.epoch,
        seed: job.spec.seed,
        mode: mode_to_proto(iteration.mode).into(),
        worker_slot,
        definition_json: dataset.definition.text().to_owned(),
        source_schema_ipc: dataset.source_schema_ipc.clone().into(),
        fingerprint: dataset.fingerprint.to_string(),
        deterministic: dataset.deterministic,
        caching: iteration.caching,
        profile: job.spec.profile_only
            || iteration.caching && job.spec.policy.is_planned() && job.decision.is_none(),
        profile_only: job.spec.profile_only,
        probe_encoding: job.spec.encoding.map(|e| e.to_string()).unwrap_or_default(),
        probe_stored_only: !job.spec.profile_only
            && is_last_reading(job.spec.epochs, iteration.epoch, record),
        cache_url: match &job.spec.save {
            Some(save) => save.url.clone(),
            None if iteration.caching => config.cache_url.clone(),
            None => String::new(),
        },
        num_consumers: iteration.even.as_ref().map_or(0, |e| e.consumers.count),
        pads: iteration.even.as_ref().is_some_and(|e| e.consumers.uneven == Uneven::Pad),
        sharing: sharing_name(job),
        balance: iteration
            .even
            .as_ref()
            .filter(|e| e.is_in_rounds())
            .map_or("", |e| e.consumers.balance.as_str())
            .to_string(),
        cache_budget: config.cache_budget.filter(|_| job.spec.save.is_none()).unwrap_or(0),
        shard_by: shard.map_or("", |s| s.by.as_str()).to_string(),
        num_shards: shard.map_or(0, |_| iteration.num_shards),
        shard_index: shard.map_or(0, |_| task.feed.0),
        priority: job.spec.priority.level,
        weight_milli: job.spec.priority.weight_milli,
        secret: task.secret.map(|s| s.to_vec().into()).unwrap_or_default(),
    })
}

/// As messages name it; empty if the job shares nothing.
pub(super) fn sharing_name(job: &Job) -> String {
    match job.spec.sharing {
        Sharing::Off => String::new(),
        sharing => sharing.as_str().to_string(),
    }
}

pub(super) fn modes_from_proto(m: v1::SplitModes) -> SplitModes {
    SplitModes {
        compute: m.compute,
        put: m.put,
        get: m.get,
        fell_back: m.fell_back,
        backfilled: m.backfilled,
    }
}

/// How far a feed is listed, in messages.
pub(super) fn listed_splits(id: FeedId, feed: &Feed) -> Option<v1::ListedSplits> {
    feed.listed().map(|listed| v1::ListedSplits { feed: id.0, count: listed.count, digest: listed.digest })
}

pub(super) fn modes_to_proto(m: SplitModes) -> v1::SplitModes {
    v1::SplitModes {
        compute: m.compute,
        put: m.put,
        get: m.get,
        fell_back: m.fell_back,
        backfilled: m.backfilled,
    }
}

fn mode_to_proto(mode: Mode) -> v1::ProcessingMode {
    match mode {
        Mode::Dynamic => v1::ProcessingMode::Dynamic,
        Mode::Off => v1::ProcessingMode::Off,
        Mode::File => v1::ProcessingMode::File,
        Mode::Data => v1::ProcessingMode::Data,
        Mode::FileOrData => v1::ProcessingMode::FileOrData,
        Mode::Hint => v1::ProcessingMode::Hint,
    }
}
