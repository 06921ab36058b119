//! The model once more, as docs/plan.md words it and without optimisations: the other half of a
//! differential test. Rates here, seconds per row there; loops here, prefix sums there.

use caju_planner::{Encoding, Profile};

/// What the rows of an epoch do, as shares.
#[derive(Clone, Copy)]
pub(crate) struct Shares {
    /// Run the stages above the hint.
    pub(crate) computed: f64,
    /// Come from the snapshot.
    pub(crate) read: f64,
    /// Go to the snapshot.
    pub(crate) written: f64,
    /// Of those that come from the snapshot, are in a worker's memory.
    pub(crate) near: f64,
}

/// The share of a stored fraction that is in the memory of the worker that wants it, epoch by epoch: what it read in one of
/// the epochs before, as far as its memory holds it.
pub(crate) fn near(p: &Profile, e: &Encoding, fraction: f64) -> f64 {
    let stored = fraction * e.bytes_per_row * p.source.rows as f64 / p.source.readings.unwrap_or(1) as f64;
    let Some(kept) = p.cache_store.memory_bytes_per_worker.filter(|_| stored > 0.0) else { return 0.0 };
    let reading = (p.horizon.epochs.unwrap_or(10) * p.horizon.jobs.unwrap_or(1)).saturating_sub(1).max(1);
    let (mut never, mut hits) = (1.0, 0.0);
    for _ in 0..reading {
        hits += 1.0 - never;
        never *= 1.0 - 1.0 / p.cluster.workers as f64;
    }
    (hits / reading as f64).min(kept / stored)
}

/// Rows per second when a hint after the stage `above - 1` is used in these shares.
pub(crate) fn rate(p: &Profile, above: usize, encoding: Option<&Encoding>, shares: Shares) -> f64 {
    ceilings(p, above, encoding, shares).into_iter().map(|(_, c)| c).min_by(f64::total_cmp).unwrap()
}

/// Every ceiling and its name.
fn ceilings(p: &Profile, above: usize, encoding: Option<&Encoding>, shares: Shares) -> Vec<(String, f64)> {
    let workers = p.cluster.workers as f64;
    // Jobs that share rows: common stages run once for all of them, the others once for each.
    let (common, jobs) = match &p.sharing {
        Some(s) => (1 + p.stages.iter().position(|x| x.name == s.after_stage).unwrap(), s.jobs as f64),
        None => (0, 1.0),
    };
    let times = |i: usize| if i < common { 1.0 } else { jobs };
    let decoded = if above < common { 1.0 } else { jobs };
    let share = |i: usize| if i < above { shares.computed } else { 1.0 };
    let mut ceilings = vec![("consumer".to_owned(), 1e12)];
    let mut cap = |name: &str, capacity: f64, demand: f64| {
        if demand > 0.0 {
            ceilings.push((name.to_owned(), capacity / demand));
        }
    };

    let (mut cpu, mut io, mut rows) = (0.0, 0.0, 1.0);
    for (i, s) in p.stages.iter().enumerate() {
        cpu += times(i) * share(i) * s.cpu_s_per_row;
        io += times(i) * share(i) * s.io_bytes_per_row;
        rows *= s.out_rows_per_row;
        if let Some(parallel) = s.max_parallelism {
            cap(&format!("stage:{}", s.name), workers * parallel, share(i) * s.service_s_per_row);
        }
    }
    if let Some(e) = encoding {
        cpu += decoded * shares.read * e.decode_cpu_s_per_row + shares.written * e.encode_cpu_s_per_row;
        if let Some(b) = p.cache_store.read_bytes_per_s {
            cap("cache_store", b, decoded * shares.read * e.bytes_per_row * (1.0 - shares.near));
        }
        if let Some(b) = p.cache_store.write_bytes_per_s {
            cap("cache_store", b, shares.written * e.bytes_per_row);
        }
    }
    cap("cores", workers * p.cluster.cores_per_worker, cpu);
    if let Some(b) = p.source_store.read_bytes_per_s {
        cap("source_store", b, io);
    }
    if let Some(b) = p.cluster.network_bytes_per_s_per_worker {
        cap("network", workers * b, jobs * p.stages.last().unwrap().out_bytes_per_row);
    }
    if let Some(r) = p.consumer.rows_per_s {
        cap("consumer", r, rows);
    }
    ceilings
}

/// An option as a decision should show it.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Hint, format and compression; computing has none.
    pub(crate) stored: Option<(String, String, String)>,
    pub(crate) fraction: f64,
    pub(crate) feasible: bool,
    pub(crate) rate: f64,
    /// Every limit that is as low as the lowest.
    pub(crate) bottlenecks: Vec<String>,
    pub(crate) horizon_s: f64,
    pub(crate) bytes: f64,
    pub(crate) freezes_random: bool,
}

/// Every option of a profile, in the order of a decision.
pub(crate) fn options(p: &Profile) -> Vec<Expected> {
    let all = Shares { computed: 1.0, read: 0.0, written: 0.0, near: 0.0 };
    let mut out = vec![expected(p, 0, None, all, all)];
    for above in 1..=p.stages.len() {
        for h in p.hints.iter().filter(|h| h.after_stage == p.stages[above - 1].name) {
            for e in &h.encodings {
                let stored = Some((h.name.clone(), e.format.clone(), e.compression.clone()));
                let there = p
                    .existing
                    .iter()
                    .find(|x| x.hint == h.name && x.format == e.format && x.compression == e.compression);
                let readings = p.source.readings.unwrap_or(1) as f64;
                let whole = e.bytes_per_row * p.source.rows as f64 / readings;
                let fits = match p.budget.snapshot_bytes {
                    Some(budget) if budget < whole => (budget / whole * 1e9).floor() / 1e9,
                    _ => 1.0,
                };
                let mut push = |fraction: f64, existing: f64, feasible: bool| {
                    let near = if feasible { near(p, e, fraction) } else { 0.0 };
                    let steady = Shares { computed: 1.0 - fraction, read: fraction, written: 0.0, near };
                    let written = (fraction - existing) / readings;
                    let near = if written > 0.0 { 0.0 } else { near };
                    let first = Shares { computed: 1.0 - existing, read: existing, written, near };
                    let o = expected(p, above, Some(e), first, steady);
                    out.push(Expected {
                        stored: stored.clone(),
                        fraction,
                        feasible,
                        bytes: fraction * whole,
                        ..o
                    });
                };
                let mut there = there.map_or(0.0, |x| x.fraction).min(fits);
                if fits == 0.0 || fits < 1.0 && !h.split_local {
                    push(1.0, 0.0, false);
                    continue;
                }
                if !h.split_local && there < 1.0 {
                    there = 0.0;
                }
                if there > 0.0 {
                    push(there, there, true);
                }
                if there < fits {
                    push(fits, there, true);
                }
            }
        }
    }
    out
}

fn expected(p: &Profile, above: usize, e: Option<&Encoding>, first: Shares, steady: Shares) -> Expected {
    let rate = rate(p, above, e, steady);
    let bottlenecks = ceilings(p, above, e, steady).into_iter().filter(|c| c.1 <= rate * (1.0 + 1e-9));
    let epochs = (p.horizon.epochs.unwrap_or(10) * p.horizon.jobs.unwrap_or(1)) as f64;
    let epochs_s = 1.0 / self::rate(p, above, e, first) + (epochs - 1.0) / rate;
    Expected {
        stored: None,
        fraction: 1.0,
        feasible: true,
        rate,
        bottlenecks: bottlenecks.map(|c| c.0).collect(),
        horizon_s: if epochs == 0.0 { 0.0 } else { p.source.rows as f64 * epochs_s },
        bytes: 0.0,
        freezes_random: p.stages[..above].iter().any(|s| s.random),
    }
}
