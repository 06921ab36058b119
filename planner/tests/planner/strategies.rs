//! Random profiles: small, but with every field in every state.

use caju_planner::{
    Budget, CacheStore, Cluster, Consumer, Encoding, Existing, Hint, Horizon, Prices, Profile, Schema,
    Sharing, Source, SourceStore, Stage,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Spread evenly over orders of magnitude, and sometimes exactly zero.
fn cost(low: i32, high: i32) -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0.0), 9 => positive(low, high)]
}

fn positive(low: i32, high: i32) -> impl Strategy<Value = f64> {
    (f64::from(low)..f64::from(high)).prop_map(|e| 10f64.powf(e))
}

fn stage() -> impl Strategy<Value = Stage> {
    (
        cost(2, 6),
        cost(-6, -2),
        cost(-6, -2),
        option::of((1u32..16).prop_map(f64::from)),
        prop_oneof![4 => Just(1.0), 1 => Just(0.0), 3 => positive(-2, 2)],
        cost(2, 6),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(io, cpu, wait, par, rows, bytes, random)| Stage {
            name: String::new(),
            io_bytes_per_row: io,
            cpu_s_per_row: cpu,
            service_s_per_row: cpu + wait,
            max_parallelism: par,
            out_rows_per_row: rows,
            out_bytes_per_row: bytes,
            random,
        })
}

fn encodings() -> impl Strategy<Value = Vec<Encoding>> {
    vec((cost(2, 6), cost(-6, -2), cost(-6, -2)), 0..4).prop_map(|all| {
        let encoding = |(i, (bytes, encode, decode)): (usize, (f64, f64, f64))| Encoding {
            format: ["arrow", "arrow", "parquet"][i].into(),
            compression: ["none", "zstd", "zstd"][i].into(),
            bytes_per_row: bytes,
            encode_cpu_s_per_row: encode,
            decode_cpu_s_per_row: decode,
        };
        all.into_iter().enumerate().map(encoding).collect()
    })
}

/// A hint with its place, encodings, and for each encoding the share that exists (0: not listed).
type HintParts = (prop::sample::Index, bool, Vec<Encoding>, Vec<f64>);

fn hint() -> impl Strategy<Value = HintParts> {
    let share = prop_oneof![6 => Just(0.0), 1 => Just(1.0), 1 => 0.0..1.0f64];
    (any::<prop::sample::Index>(), prop::bool::weighted(0.85), encodings(), vec(share, 4))
}

prop_compose! {
    /// Any valid profile of up to six stages and four hints.
    pub(crate) fn profile()(
        mut stages in vec(stage(), 1..7),
        hints in vec(hint(), 0..5),
        (workers, cores) in (1u64..5, (1u32..17).prop_map(f64::from)),
        network in option::of(positive(7, 10)),
        source in option::of(positive(7, 10)),
        (read, write, near) in (option::of(positive(7, 10)), option::of(positive(7, 10)), option::weighted(0.3, cost(5, 11))),
        consumer in option::weighted(0.3, positive(1, 5)),
        (epochs, jobs) in (option::weighted(0.9, 0u64..100), option::weighted(0.5, 0u64..4)),
        budget in option::weighted(0.4, cost(6, 12)),
        (worker_price, accelerator_price) in (option::weighted(0.3, cost(-2, 2)), option::weighted(0.3, cost(-2, 3))),
        (rows, readings) in (prop_oneof![1 => Just(0u64), 9 => 1u64..1_000_000], option::weighted(0.2, 1u64..4)),
        sharing in option::weighted(0.3, (1u64..10, any::<prop::sample::Index>())),
    ) -> Profile {
        for (i, s) in stages.iter_mut().enumerate() {
            s.name = format!("s{i}");
        }
        let mut existing = Vec::new();
        let mut out = Vec::new();
        for (i, (place, split_local, encodings, shares)) in hints.into_iter().enumerate() {
            for (e, &fraction) in encodings.iter().zip(&shares).filter(|(_, f)| **f > 0.0) {
                let (format, compression) = (e.format.clone(), e.compression.clone());
                existing.push(Existing { hint: format!("h{i}"), format, compression, fraction });
            }
            let after_stage = place.get(&stages).name.clone();
            out.push(Hint { name: format!("h{i}"), after_stage, split_local, encodings });
        }
        let sharing = sharing.map(|(jobs, at)| Sharing { jobs, after_stage: at.get(&stages).name.clone() });
        Profile {
            schema: Schema::V1,
            sharing,
            cluster: Cluster { workers, cores_per_worker: cores, network_bytes_per_s_per_worker: network },
            source_store: SourceStore { read_bytes_per_s: source },
            cache_store: CacheStore { read_bytes_per_s: read, write_bytes_per_s: write, memory_bytes_per_worker: near },
            consumer: Consumer { rows_per_s: consumer },
            horizon: Horizon { epochs, jobs },
            budget: Budget { snapshot_bytes: budget },
            prices: Prices { worker_per_h: worker_price, accelerator_per_h: accelerator_price },
            source: Source { rows, readings },
            existing,
            stages,
            hints: out,
            measured: Vec::new(),
            observed: Vec::new(),
        }
    }
}
