//! A profile of any size, the same every time.

use caju_planner::{
    Budget, CacheStore, Cluster, Consumer, Encoding, Hint, Horizon, Prices, Profile, Schema, Source,
    SourceStore, Stage,
};

/// A pipeline of the given number of stages, with hints spread evenly over it.
pub(crate) fn profile(stages: u32, hints: u32, encodings: u32) -> Profile {
    let stage = |i: u32| Stage {
        name: format!("stage-{i}"),
        io_bytes_per_row: if i == 0 { 1e5 } else { 0.0 },
        cpu_s_per_row: 1e-7 * f64::from(1 + i % 7),
        service_s_per_row: 1e-7 * f64::from(1 + i % 11),
        max_parallelism: (!i.is_multiple_of(3)).then(|| f64::from(i % 8 + 1)),
        out_rows_per_row: 1.0,
        out_bytes_per_row: 1e5 + f64::from(i),
        random: i % 97 == 96,
    };
    let encoding = |i: u32, j: u32| Encoding {
        format: format!("format-{j}"),
        compression: "none".into(),
        bytes_per_row: 1e5 + f64::from(i) * 10.0 - f64::from(j) * 5e3,
        encode_cpu_s_per_row: 1e-5 * f64::from(j + 1),
        decode_cpu_s_per_row: 1e-6 * f64::from(j * j + 1),
    };
    let hint = |i: u32| Hint {
        name: format!("hint-{i}"),
        after_stage: format!("stage-{}", (i + 1) * (stages / hints) - 1),
        split_local: true,
        encodings: (0..encodings).map(|j| encoding(i, j)).collect(),
    };
    Profile {
        schema: Schema::V1,
        sharing: None,
        cluster: Cluster { workers: 4, cores_per_worker: 16.0, network_bytes_per_s_per_worker: Some(1e10) },
        source_store: SourceStore { read_bytes_per_s: Some(1e9) },
        cache_store: CacheStore {
            read_bytes_per_s: Some(4e9),
            write_bytes_per_s: Some(2e9),
            memory_bytes_per_worker: None,
        },
        consumer: Consumer::default(),
        horizon: Horizon { epochs: Some(90), jobs: Some(1) },
        budget: Budget { snapshot_bytes: Some(9e10) },
        prices: Prices::default(),
        source: Source { rows: 1_000_000, readings: None },
        existing: Vec::new(),
        stages: (0..stages).map(stage).collect(),
        hints: (0..hints).map(hint).collect(),
        measured: Vec::new(),
        observed: Vec::new(),
    }
}
