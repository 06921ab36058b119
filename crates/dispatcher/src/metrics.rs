//! The metrics of `GET /metrics`: what `caju status` shows, in the OpenMetrics text format that Prometheus reads.
//!
//! The values are measured elsewhere. Each request gets a registry of its own, so that the metrics of forgotten jobs and of
//! workers that have left disappear.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use caju_planner::ScalingTarget;
use caju_proto::v1::{GetStatusResponse, JobStatus, TunedSetting, WorkerStatus};
use caju_types::{Error, Result};
use hyper::header::HeaderValue;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::control::ClusterCounts;
use crate::keda::METRIC;

/// The type of the text that [`encode`] makes.
pub(crate) const CONTENT_TYPE: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// What the metrics are made from.
pub(crate) struct Measured<'a> {
    pub(crate) status: &'a GetStatusResponse,
    pub(crate) counts: ClusterCounts,
    pub(crate) target: Option<&'a ScalingTarget>,
}

/// The metrics as text.
///
/// # Errors
/// If the text cannot be written, which the format does not let happen for these metrics.
pub(crate) fn encode(measured: &Measured<'_>) -> Result<String> {
    let mut metrics = Metrics::default();
    metrics.pool(measured);
    metrics.workers(&measured.status.workers);
    // A job's earlier epochs stay known for a while: its metrics are those of the last one.
    let last: BTreeMap<&str, &JobStatus> = measured
        .status
        .jobs
        .iter()
        .map(|job| ((job.job.as_str(), job.epoch), job))
        .collect::<BTreeMap<_, _>>()
        .into_iter()
        .map(|((name, _), job)| (name, job))
        .collect();
    metrics.jobs(&last);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics.registry)
        .map_err(|e| Error::internal(format!("the metrics cannot be written: {e}")))?;
    Ok(text)
}

type Labels<const N: usize> = [(&'static str, String); N];
type Number = Gauge<u64, AtomicU64>;
type Fraction = Gauge<f64, AtomicU64>;

#[derive(Default)]
struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// A number without labels.
    fn number(&mut self, name: &str, help: &str, value: u64) {
        let gauge = Number::default();
        gauge.set(value);
        self.registry.register(name, help, gauge);
    }

    /// A number for each set of labels.
    fn numbers<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Labels<N>, u64)>,
    ) {
        let family = Family::<Labels<N>, Number>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help, family);
    }

    /// A number with a fraction for each set of labels.
    fn fractions<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Labels<N>, f64)>,
    ) {
        let family = Family::<Labels<N>, Fraction>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help, family);
    }

    /// The dispatcher, its pool of workers, and the cache.
    fn pool(&mut self, measured: &Measured<'_>) {
        let status = measured.status;
        if let Some(target) = measured.target {
            self.number(METRIC, "Workers that should run, see docs/scaling.md", target.workers);
        }
        let counts = measured.counts;
        self.number("caju_workers", "Workers that run and take tasks", counts.workers);
        let help = "Those of them that run in the processes of readers";
        self.number("caju_local_workers", help, counts.local_workers);
        self.number("caju_epochs_active", "Epochs that readers are in the middle of", counts.epochs_read);
        let jobs = measured.target.iter().flat_map(|target| &target.jobs);
        let wanted = jobs.map(|(job, workers)| ([("job", job.to_string())], *workers));
        let help = "Workers that a running job would need alone; 0 while that is not known";
        self.numbers("caju_job_target_workers", help, wanted);
        let uptime = Fraction::default();
        uptime.set(status.uptime_s);
        let help = "Time since the dispatcher's process has started";
        self.registry.register("caju_uptime_seconds", help, uptime);
        self.numbers(
            "caju_build_info",
            "Always 1; the label has the version",
            [([("version", status.version.clone())], 1)].into_iter(),
        );
        if let Some(cache) = &status.cache {
            self.number("caju_cache_bytes", "Bytes of stored rows under the cache's root", cache.bytes);
            self.number(
                "caju_cache_budget_bytes",
                "The cache's budget; 0 if it has none",
                cache.budget_bytes,
            );
            self.number("caju_cache_snapshots", "Snapshots under the cache's root", cache.snapshots);
        }
    }

    fn workers(&mut self, workers: &[WorkerStatus]) {
        let of = |worker: &WorkerStatus| [("worker", worker.address.clone())];
        let here = || workers.iter().filter(|w| matches!(w.state.as_str(), "active" | "draining"));
        let silent = "Time since the last heartbeat of a worker";
        self.fractions("caju_worker_silent_seconds", silent, here().map(|w| (of(w), w.silent_s)));
        let tasks = here().map(|w| (of(w), len(w.tasks.len())));
        self.numbers("caju_worker_tasks", "Tasks that a worker runs", tasks);
        let usage = || here().filter_map(|w| w.usage.as_ref().map(|usage| (of(w), usage)));
        let memory = usage().map(|(l, u)| (l, u.rss_bytes));
        self.numbers("caju_worker_memory_bytes", "Resident memory of a worker", memory);
        let tiers = usage().flat_map(|([worker], u)| {
            [
                ([worker.clone(), ("tier", "memory".to_owned())], u.memory_tier_bytes),
                ([worker, ("tier", "disk".to_owned())], u.disk_tier_bytes),
            ]
        });
        self.numbers("caju_worker_tier_bytes", "Blocks of snapshots that a worker holds locally", tiers);
        let window = usage().filter_map(|(l, u)| Some((l, u.sharing.as_ref()?.bytes)));
        let help = "Rows that a worker holds for the jobs that share them";
        self.numbers("caju_worker_sharing_bytes", help, window);
        let hits = usage().filter_map(|(l, u)| Some((l, u.sharing.as_ref()?.hits)));
        let help = "Splits that tasks of a worker read from the rows that jobs share, since it started";
        self.numbers("caju_worker_sharing_hits_total", help, hits);
        let misses = usage().filter_map(|(l, u)| Some((l, u.sharing.as_ref()?.misses)));
        let help = "Splits that tasks of a worker computed because no job had computed them for them, since it started";
        self.numbers("caju_worker_sharing_misses_total", help, misses);
        let disk = usage().filter_map(|(l, u)| Some((l, u.sharing.as_ref()?.disk_bytes)));
        let help = "Files with rows that a worker holds for jobs that lag";
        self.numbers("caju_worker_sharing_disk_bytes", help, disk);
        let files = usage().filter_map(|(l, u)| Some((l, u.sharing.as_ref()?.file_bytes)));
        let help = "Rows in shared memory that a worker holds for further readers of its host";
        self.numbers("caju_worker_shared_memory_bytes", help, files);
        let tuned = |name: &'static str| {
            here().flat_map(move |w| w.tuned.iter().filter(move |s| s.name == name).map(move |s| (of(w), s)))
        };
        let value = |([worker], s): ([(&'static str, String); 1], &TunedSetting)| ([worker], s.value);
        let help = "Threads of a worker that compute";
        self.numbers("caju_worker_cpu_threads", help, tuned("cpu_threads").map(value));
        let help = "Bound of what all queues of a worker hold together";
        self.numbers("caju_worker_buffer_limit_bytes", help, tuned("buffer_bytes").map(value));
        let readers = tuned("readers").map(|([worker], s)| ([worker, ("job", s.job.clone())], s.value));
        let help =
            "Splits that a task of a job reads concurrently; without a job it was given by hand for all";
        self.numbers("caju_worker_split_readers", help, readers);
    }

    /// The last epoch of each job.
    fn jobs(&mut self, jobs: &BTreeMap<&str, &JobStatus>) {
        let of = |name: &&str| [("job", (*name).to_owned())];
        let numbers = |get: fn(&JobStatus) -> u64| jobs.iter().map(move |(name, job)| (of(name), get(job)));
        self.numbers("caju_job_epoch", "The last epoch of a job", numbers(|j| j.epoch));
        let states = jobs.iter().map(|(name, job)| {
            let [job_label] = of(name);
            ([job_label, ("state", job.state.clone())], 1)
        });
        let help = "Always 1; the label has the state of a job's last epoch: running, finished, incomplete, abandoned or failed";
        self.numbers("caju_job_state", help, states);
        let splits = jobs.iter().flat_map(|(name, job)| {
            let splits = job.splits.unwrap_or_default();
            let count = move |state: &str, n: u64| {
                let [job_label] = of(name);
                ([job_label, ("state", state.to_owned())], n)
            };
            [
                count("waiting", splits.waiting),
                count("leased", splits.leased),
                count("sent", splits.sent),
                count("done", splits.done),
            ]
        });
        let help = "Splits of a job's last epoch that were listed so far";
        self.numbers("caju_job_splits", help, splits);
        self.numbers("caju_job_readers", "Readers of a job", numbers(|j| u64::from(j.clients)));
        self.numbers("caju_job_tasks", "Tasks that run for a job", numbers(|j| u64::from(j.tasks)));
        let help = "Rows that a job's last epoch left out by `on_error: skip`";
        self.numbers("caju_job_skipped_rows", help, numbers(|j| j.rows_skipped));
        let rates = jobs.iter().map(|(name, job)| {
            // The sum of no floats is -0.
            (of(name), job.readers.iter().fold(0.0, |sum, r| sum + r.rows_per_s))
        });
        self.fractions("caju_job_rows_per_second", "Rows that all readers of a job take per second", rates);
        let waits = jobs.iter().filter(|(_, job)| !job.readers.is_empty()).map(|(name, job)| {
            let most = job.readers.iter().map(|r| r.wait_fraction).fold(0.0, f64::max);
            (of(name), most)
        });
        let help = "Fraction of the time for which the user of a job's reader waited for rows; of the reader that waited most";
        self.fractions("caju_job_wait_fraction", help, waits);
        self.served("caju_epoch_rows", "Rows that workers sent in a job's last epoch", jobs, |s| s.rows);
        self.served("caju_epoch_elements", "Elements that workers sent in a job's last epoch", jobs, |s| {
            s.elements
        });
        self.served("caju_epoch_bytes", "Bytes that workers sent in a job's last epoch", jobs, |s| s.bytes);
    }

    /// What workers sent to a job's readers in an epoch. The epoch is a label: a counter never falls.
    fn served(
        &mut self,
        name: &str,
        help: &str,
        jobs: &BTreeMap<&str, &JobStatus>,
        get: fn(&caju_proto::v1::TaskServed) -> u64,
    ) {
        let family = Family::<Labels<2>, Counter>::default();
        for (name, job) in jobs {
            let Some(served) = &job.served else { continue };
            let labels = [("job", (*name).to_owned()), ("epoch", job.epoch.to_string())];
            family.get_or_create(&labels).inc_by(get(served));
        }
        self.registry.register(name, help, family);
    }
}

fn len(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use caju_proto::v1::{CacheSize, ReaderStatus, SharingUsage, SplitStates, TaskServed, WorkerUsage};

    use super::*;

    #[test]
    fn metrics_of_a_job_are_those_of_its_last_epoch() {
        let epoch = |epoch: u64, state: &str, rows: u64| JobStatus {
            job: "a\"b\n".to_owned(),
            epoch,
            state: state.to_owned(),
            splits: Some(SplitStates { done: 7, ..Default::default() }),
            served: Some(TaskServed { rows, ..Default::default() }),
            readers: [0.25, 0.5]
                .map(|wait_fraction| ReaderStatus { wait_fraction, rows_per_s: 10.5, ..Default::default() })
                .to_vec(),
            ..Default::default()
        };
        let worker = |address: &str, state: &str| WorkerStatus {
            address: address.to_owned(),
            state: state.to_owned(),
            usage: Some(WorkerUsage {
                disk_tier_bytes: 9,
                sharing: Some(SharingUsage { hits: 3, misses: 4, ..Default::default() }),
                ..Default::default()
            }),
            tuned: [("cpu_threads", "", 8), ("readers", "train", 12), ("buffer_bytes", "", 64)]
                .map(|(name, job, value)| TunedSetting {
                    name: name.into(),
                    job: job.into(),
                    value,
                    ..Default::default()
                })
                .to_vec(),
            ..Default::default()
        };
        let status = GetStatusResponse {
            jobs: vec![epoch(1, "running", 40), epoch(0, "finished", 100)],
            workers: vec![worker("h:1", "active"), worker("h:2", "lost")],
            cache: Some(CacheSize { bytes: 5, ..Default::default() }),
            ..Default::default()
        };
        let target = ScalingTarget::default();
        let counts = ClusterCounts { workers: 3, local_workers: 2, epochs_read: 1 };
        let encoded =
            |target: Option<&ScalingTarget>| encode(&Measured { status: &status, counts, target }).unwrap();
        let unknown = encoded(None);
        assert!(!unknown.contains(METRIC) && unknown.contains("caju_workers 3"), "{unknown}");
        let text = encoded(Some(&target));
        let job = r#"job="a\"b\n""#;
        for line in [
            "caju_workers 3".to_owned(),
            "caju_local_workers 2".to_owned(),
            "caju_target_workers 0".to_owned(),
            "caju_cache_bytes 5".to_owned(),
            r#"caju_worker_tier_bytes{worker="h:1",tier="disk"} 9"#.to_owned(),
            r#"caju_worker_sharing_hits_total{worker="h:1"} 3"#.to_owned(),
            r#"caju_worker_sharing_misses_total{worker="h:1"} 4"#.to_owned(),
            r#"caju_worker_cpu_threads{worker="h:1"} 8"#.to_owned(),
            r#"caju_worker_split_readers{worker="h:1",job="train"} 12"#.to_owned(),
            r#"caju_worker_buffer_limit_bytes{worker="h:1"} 64"#.to_owned(),
            format!("caju_job_epoch{{{job}}} 1"),
            format!("caju_job_state{{{job},state=\"running\"}} 1"),
            format!("caju_job_splits{{{job},state=\"done\"}} 7"),
            format!("caju_job_rows_per_second{{{job}}} 21.0"),
            format!("caju_job_wait_fraction{{{job}}} 0.5"),
            format!("caju_epoch_rows_total{{{job},epoch=\"1\"}} 40"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        let samples: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        assert!(!samples.iter().any(|l| l.contains("finished") || l.contains("h:2")), "{text}");
    }
}
