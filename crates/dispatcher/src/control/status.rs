//! For people: what is there and how it goes.

use caju_autocache::{CachePlan, Document};
use caju_planner::Profile;
use caju_proto::v1;
use caju_types::Result;

use super::Core;
use super::workers::modes_to_proto;
use crate::state::{Iteration, Job, State, TaskState, Worker};

impl Core {
    pub(crate) async fn get_status(&self) -> Result<v1::GetStatusResponse> {
        let now = self.clock.now();
        self.look(|state| v1::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_string(),
            uptime_s: now.saturating_sub(self.process.started).as_secs_f64(),
            workers: state.workers.values().map(|w| self.worker_status(state, w)).collect(),
            jobs: state.iterations.values().map(|i| self.job_status(state, i)).collect(),
            saves: state.saves.values().map(|s| self.save_status(s)).collect(),
            cache_url: self.config.cache_url.clone(),
            journal: self.store.describe_journal().to_string(),
            configured_workers: self.config.workers.entries().to_vec(),
        })
        .await
    }

    fn worker_status(&self, state: &State, worker: &Worker) -> v1::WorkerStatus {
        let heard = self.reports.lock().workers.get(&worker.id).map(|r| r.at);
        let tasks = state.iterations.values().flat_map(|i| i.tasks.values());
        let here = tasks.filter(|t| t.worker == worker.id && t.state == TaskState::Active);
        v1::WorkerStatus {
            worker_id: worker.id.0,
            address: worker.address.clone(),
            tags: worker.tags.clone(),
            cores: worker.cores,
            silent_s: heard.map_or(0.0, |at| self.clock.now().saturating_sub(at).as_secs_f64()),
            state: worker.state_name().to_string(),
            tasks: here.map(|t| t.id.0).collect(),
            slot: worker.slot,
        }
    }

    fn job_status(&self, state: &State, iteration: &Iteration) -> v1::JobStatus {
        let dataset = state.datasets.get(&iteration.dataset);
        let reports = self.reports.lock();
        let stages = reports.stages(iteration);
        let bottleneck = reports.bottleneck(iteration, &stages);
        let first_skips = reports.first_skips.get(&iteration.id).cloned().unwrap_or_default();
        let io = reports.ended_io.get(&iteration.id).copied();
        drop(reports);
        // A task that a client has read to its end runs on until its worker has reported.
        let running =
            iteration.tasks.values().filter(|t| t.state == TaskState::Active || t.is_over() && !t.reported);
        v1::JobStatus {
            rows_skipped: iteration.rows_skipped,
            job: iteration.job.0.clone(),
            dataset_id: iteration.dataset.0.clone(),
            pipeline: dataset.and_then(|d| d.name.clone()).unwrap_or_default(),
            iteration_id: iteration.id.0,
            epoch: iteration.epoch,
            state: iteration.state_name().to_string(),
            splits_total: self.listings.splits_total(iteration),
            splits_leased: iteration.splits_leased(),
            clients: count(iteration.members.len()),
            tasks: count(running.count()),
            mode: iteration.mode.as_str().to_string(),
            target_workers: iteration.target.as_str().to_string(),
            num_consumers: iteration.even.as_ref().map_or(0, |e| e.consumers.count),
            surplus_elements: iteration.even.as_ref().map_or(0, |e| e.surplus),
            padded_elements: iteration.even.as_ref().map_or(0, |e| e.padded),
            failure: iteration.failure.as_ref().map(Into::into),
            bottleneck,
            stages,
            decision_json: decision(state, iteration),
            incomplete: super::acknowledgements::incomplete(iteration, None),
            profile_json: state
                .jobs
                .get(&iteration.job)
                .and_then(profile_with_rates)
                .map(|profile| profile.text().to_string())
                .unwrap_or_default(),
            policy: state.jobs.get(&iteration.job).map(|j| j.spec.policy.to_string()).unwrap_or_default(),
            modes: Some(modes_to_proto(iteration.modes)),
            caching: iteration.plan.as_ref().map(describe).unwrap_or_default(),
            io,
            first_skips,
            shard_by: iteration.shard_by.map_or("", |by| by.as_str()).to_string(),
            num_shards: iteration.num_shards,
        }
    }
}

/// The planner's decision for an iteration's job.
pub(super) fn decision(state: &State, iteration: &Iteration) -> String {
    let decision = state.jobs.get(&iteration.job).and_then(|j| j.decision.as_ref());
    decision.map(|d| d.text().to_string()).unwrap_or_default()
}

/// The profile of a job's decision, with the rates that options had in its epochs.
pub(super) fn profile_with_rates(job: &Job) -> Option<Document<Profile>> {
    let profile = job.profile.as_ref()?;
    Some(caju_autocache::profile_with_rates(profile, job.decision.as_ref(), &job.replan))
}

/// A plan for people.
fn describe(plan: &Document<CachePlan>) -> String {
    plan.value().map_or_else(|| plan.text().to_string(), CachePlan::describe)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
