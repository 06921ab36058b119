//! The model once more, as the design words it and without any cleverness: the other half of a
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
}

/// Rows per second when a hint after the stage `above - 1` is used in these shares.
pub(crate) fn rate(p: &Profile, above: usize, encoding: Option<&Encoding>, shares: Shares) -> f64 {
    let workers = p.cluster.workers as f64;
    let share = |i: usize| if i < above { shares.computed } else { 1.0 };
    let mut ceilings = vec![1e12];
    let mut cap = |capacity: f64, demand: f64| {
        if demand > 0.0 {
            ceilings.push(capacity / demand);
        }
    };

    let (mut cpu, mut io, mut rows) = (0.0, 0.0, 1.0);
    for (i, s) in p.stages.iter().enumerate() {
        cpu += share(i) * s.cpu_s_per_row;
        io += share(i) * s.io_bytes_per_row;
        rows *= s.out_rows_per_row;
        if let Some(parallel) = s.max_parallelism {
            cap(workers * parallel, share(i) * s.service_s_per_row);
        }
    }
    if let Some(e) = encoding {
        cpu += shares.read * e.decode_cpu_s_per_row + shares.written * e.encode_cpu_s_per_row;
        if let Some(b) = p.cache_store.read_bytes_per_s {
            cap(b, shares.read * e.bytes_per_row);
        }
        if let Some(b) = p.cache_store.write_bytes_per_s {
            cap(b, shares.written * e.bytes_per_row);
        }
    }
    cap(workers * p.cluster.cores_per_worker, cpu);
    if let Some(b) = p.source_store.read_bytes_per_s {
        cap(b, io);
    }
    if let Some(b) = p.cluster.network_bytes_per_s_per_worker {
        cap(workers * b, p.stages.last().unwrap().out_bytes_per_row);
    }
    if let Some(r) = p.consumer.rows_per_s {
        cap(r, rows);
    }
    ceilings.into_iter().min_by(f64::total_cmp).unwrap()
}
