//! `caju.status/v1`.

use caju_proto::v1::{
    GetStatusResponse, JobStatus, ReaderStatus, ScalingStatus, SharingUsage, SplitStates, TaskServed,
    TunedSetting, WorkerStatus, WorkerUsage,
};
use serde_json::{Value, json};

use crate::commands::boundaries;
use crate::commands::decision::recorded_json;
use crate::report::SharedReport;

pub(super) fn status(s: &GetStatusResponse) -> Value {
    let workers: Vec<Value> = s.workers.iter().map(worker_json).collect();
    let jobs: Vec<Value> = s.jobs.iter().map(job_json).collect();
    json!({"schema": "caju.status/v1", "version": s.version, "uptime_s": s.uptime_s, "workers": workers,
           "jobs": jobs, "saves": s.saves.iter().map(crate::commands::save::as_json).collect::<Vec<_>>(), "cache_url": s.cache_url, "journal": s.journal,
           "configured_workers": s.configured_workers, "scaling": s.scaling.as_ref().map(scaling_json),
           "cache": s.cache.map(|c| json!({"bytes": c.bytes, "budget_bytes": (c.budget_bytes > 0).then_some(c.budget_bytes),
               "snapshots": c.snapshots, "age_s": c.age_s}))})
}

/// How many workers should run, and how many each running job would need alone.
fn scaling_json(s: &ScalingStatus) -> Value {
    let jobs: Vec<Value> = s
        .jobs
        .iter()
        .map(|j| {
            json!({"job": j.job, "workers": (j.workers > 0).then_some(j.workers), "priority": j.priority,
                   "weight": j.weight, "share": (j.workers > 0).then_some(j.share)})
        })
        .collect();
    json!({"target_workers": s.target_workers, "reason": s.reason, "jobs": jobs})
}

fn worker_json(w: &WorkerStatus) -> Value {
    let usage = |u: &WorkerUsage| {
        json!({"rss_bytes": u.rss_bytes, "memory_tier_bytes": u.memory_tier_bytes,
           "memory_tier_limit": u.memory_tier_limit, "disk_tier_bytes": u.disk_tier_bytes,
           "disk_tier_limit": u.disk_tier_limit, "sharing": u.sharing.as_ref().map(sharing_json)})
    };
    let running: Vec<Value> = w
        .running
        .iter()
        .map(|t| {
            let mut task = served_json(t);
            task["task_id"] = json!(t.task_id);
            task
        })
        .collect();
    json!({"worker_id": w.worker_id, "address": w.address, "tags": w.tags, "cores": w.cores,
       "silent_s": w.silent_s, "state": w.state, "tasks": w.tasks, "slot": w.slot,
       "served": w.served.as_ref().map(served_json), "usage": w.usage.as_ref().map(usage), "running": running,
       "tuning": w.tuned.iter().map(tuned_json).collect::<Vec<_>>()})
}

fn tuned_json(s: &TunedSetting) -> Value {
    json!({"setting": s.name, "job": Some(&s.job).filter(|job| !job.is_empty()), "value": s.value, "reason": s.reason})
}

fn sharing_json(s: &SharingUsage) -> Value {
    json!({"bytes": s.bytes, "limit_bytes": s.limit_bytes, "peak_bytes": s.peak_bytes, "hits": s.hits, "misses": s.misses,
       "evicted_unread": s.evicted_unread, "file_bytes": s.file_bytes, "file_limit_bytes": s.file_limit_bytes,
       "disk_bytes": s.disk_bytes, "disk_limit_bytes": s.disk_limit_bytes, "spilled_bytes": s.spilled_bytes,
       "read_back": s.read_back, "spill_errors": s.spill_errors})
}

fn served_json(t: &TaskServed) -> Value {
    json!({"elements": t.elements, "rows": t.rows, "bytes": t.bytes, "source_opens": t.source_opens,
       "buffered_bytes": t.buffered_bytes, "mapped_bytes": t.mapped_bytes, "sent_bytes": t.sent_bytes,
       "shared": t.shared.map(SharedReport::from)})
}

fn reader_json(r: &ReaderStatus) -> Value {
    json!({"client_id": r.client_id, "consumer": r.consumer.checked_sub(1), "flight": r.flight,
       "silent_s": r.silent_s, "elements": r.elements, "rows": r.rows, "bytes": r.bytes,
       "rows_per_s": r.rows_per_s, "wait_fraction": r.wait_fraction, "rows_waiting": r.rows_waiting,
       "user_busy_s": r.user_busy_s, "elements_behind": r.elements_behind, "consumer_wait_s": r.consumer_wait_s})
}

fn job_json(j: &JobStatus) -> Value {
    let stages: Vec<Value> = j
        .stages
        .iter()
        .map(|s| {
            json!({"name": s.name, "rows_in": s.rows_in, "rows_out": s.rows_out, "bytes_out": s.bytes_out,
               "cpu_s": s.cpu_s, "busy_s": s.busy_s, "wait_in_s": s.wait_in_s, "wait_out_s": s.wait_out_s,
               "at_once": s.at_once})
        })
        .collect();
    let failure = j.failure.as_ref().map(|f| json!({"kind": f.kind, "message": f.message}));
    let incomplete = j.incomplete.as_ref().map(|i| {
        json!({"rows_missing": i.rows_missing, "splits": i.splits, "why": i.why,
               "rows_taken_by_lost_readers": i.rows_taken_by_lost_readers, "rows_unknown": i.rows_unknown})
    });
    json!({"job": j.job, "incomplete": incomplete, "dataset_id": j.dataset_id, "pipeline": j.pipeline, "iteration_id": j.iteration_id,
           "epoch": j.epoch, "state": j.state, "mode": j.mode, "splits_total": j.splits_total,
           "splits_leased": j.splits_leased, "clients": j.clients, "tasks": j.tasks, "failure": failure,
           "target_workers": j.target_workers, "num_consumers": j.num_consumers,
           "balance": Some(&j.balance).filter(|b| !b.is_empty()), "rounds": j.rounds,
           "boundaries": boundaries::of_job(j),
           "surplus_elements": j.surplus_elements, "padded_elements": j.padded_elements,
           "bottleneck": j.bottleneck, "stages": stages, "policy": j.policy, "caching": j.caching,
           "shard_by": Some(&j.shard_by).filter(|by| !by.is_empty()), "num_shards": j.num_shards,
           "modes": modes_json(j), "io": io_json(j), "rows_skipped": j.rows_skipped, "first_skips": j.first_skips,
           "source_changed": Some(&j.source_changed).filter(|why| !why.is_empty()),
           "readers": j.readers.iter().map(reader_json).collect::<Vec<_>>(),
           "splits": j.splits.as_ref().map(splits_json),
           "served": j.served.as_ref().map(served_json), "sharing": Some(&j.sharing).filter(|s| !s.is_empty()), "shares_with": j.shares_with,
           "workers_wanted": (j.workers_wanted > 0).then_some(j.workers_wanted),
           "decision": recorded_json(&j.decision_json), "profile": recorded_json(&j.profile_json)})
}

fn splits_json(s: &SplitStates) -> Value {
    json!({"waiting": s.waiting, "leased": s.leased, "sent": s.sent, "done": s.done, "rows_waiting": s.rows_waiting,
           "uncounted": s.uncounted})
}

/// The splits of ended tasks by execution mode, as in `caju.run/v1`.
fn modes_json(j: &JobStatus) -> Value {
    let m = j.modes.unwrap_or_default();
    json!({"compute": m.compute, "put": m.put, "get": m.get, "fell_back": m.fell_back, "backfilled": m.backfilled,
           "kept": m.backfilled})
}

fn io_json(j: &JobStatus) -> Value {
    let io = j.io.unwrap_or_default();
    json!({"source_bytes_read": io.source_bytes_read, "source_requests": io.source_requests,
           "cache_bytes_read": io.cache_bytes_read, "cache_bytes_written": io.cache_bytes_written})
}
