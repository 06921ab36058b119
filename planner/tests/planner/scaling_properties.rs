//! What must hold for the number of workers of every profile.

use caju_planner::{PoolJob, Profile, Scaling, TargetRange, WorkerLimits, scale, scale_pool};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::strategies;

fn limits() -> impl Strategy<Value = WorkerLimits> {
    (1u64..6, 0u64..24).prop_map(|(min, more)| WorkerLimits::new(min, min + more).unwrap())
}

fn of(p: &Profile, limits: WorkerLimits) -> Scaling {
    scale(p, limits).unwrap()
}

fn job() -> impl Strategy<Value = PoolJob> {
    (-2i64..3, 0.1..10.0f64, 0.0..20.0f64, prop_oneof![2 => Just(0.0), 1 => 0.0..20.0f64]).prop_map(
        |(priority, weight, busy_workers, spread)| PoolJob {
            name: "job".into(),
            priority,
            weight,
            busy_workers,
            spread,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn numbers_stay_within_their_limits(p in strategies::profile(), limits in limits()) {
        let s = of(&p, limits);
        prop_assert!(s.workers >= 1 && (limits.min()..=limits.max()).contains(&s.workers));
        let listed: Vec<u64> = s.candidates.iter().map(|c| c.workers).collect();
        prop_assert_eq!(listed, (limits.min()..=limits.max()).collect::<Vec<_>>());
        for c in &s.candidates {
            prop_assert!(c.rows_per_s > 0.0 && c.rows_per_s.is_finite());
            prop_assert!(c.consumer_wait.is_none_or(|w| (0.0..=1.0).contains(&w)), "{c:?}");
            prop_assert_eq!(c.cost_per_h.is_some(), !p.prices.is_empty());
        }
    }

    /// A higher demand never needs fewer workers, with prices and without.
    #[test]
    fn numbers_grow_with_the_demand(mut p in strategies::profile(), limits in limits(), demand in 1.0..1e5f64, factor in 1.0..50.0f64) {
        p.consumer.rows_per_s = Some(demand);
        let less = of(&p, limits).workers;
        p.consumer.rows_per_s = Some(demand * factor);
        let more = of(&p, limits).workers;
        prop_assert!(more >= less, "{less} workers for {demand}, {more} for {}", demand * factor);
        p.consumer.rows_per_s = None;
        prop_assert!(of(&p, limits).workers >= more);
    }

    /// Who follows the answer gets it again.
    #[test]
    fn numbers_are_their_own_fixpoint(mut p in strategies::profile(), limits in limits(), error in 0.0..0.5f64) {
        let first = of(&p, limits);
        p.cluster.workers = first.workers;
        prop_assert_eq!(&of(&p, limits), &first);
        let recorded = Profile::from_json(&p.to_json()).unwrap();
        prop_assert_eq!(&of(&recorded, limits), &first);
        let range = TargetRange::of(&p, limits, error).unwrap();
        prop_assert!(range.low <= range.best && range.best <= range.high, "{range:?}");
        prop_assert_eq!(range.settle(first.workers), first.workers);
        for present in limits.min()..=limits.max() {
            let next = range.settle(present);
            prop_assert_eq!(range.settle(next), next, "{:?} from {}", range, present);
        }
    }

    /// With prices no number is cheaper than the chosen one; without, none is faster by more than the half percent that
    /// counts as nothing, and none below it is as fast.
    #[test]
    fn numbers_are_the_best_of_all(p in strategies::profile(), limits in limits()) {
        let s = of(&p, limits);
        let chosen = s.chosen().unwrap();
        if s.reason.contains("no row to the consumers") {
            prop_assert_eq!(s.workers, limits.min());
            return Ok(());
        }
        for c in &s.candidates {
            match (c.cost_per_epoch, chosen.cost_per_epoch) {
                (Some(cost), Some(least)) => prop_assert!(cost >= least * (1.0 - 2e-6), "{c:?} against {chosen:?}"),
                _ => {
                    prop_assert!(c.rows_per_s * (1.0 - 0.0051) <= chosen.rows_per_s, "{c:?} against {chosen:?}");
                    let best = s.candidates.iter().map(|c| c.rows_per_s).fold(0.0, f64::max);
                    prop_assert!(c.workers >= chosen.workers || c.rows_per_s <= best * (1.0 - 0.0049));
                }
            }
        }
    }

    /// Nobody gets more than it needs, nothing is left while somebody lacks, and a higher priority never lacks what a lower
    /// one has.
    #[test]
    fn shares_of_workers_are_fair(jobs in vec(job(), 0..6), limits in limits()) {
        let pool = scale_pool(&jobs, limits).unwrap();
        prop_assert!((limits.min()..=limits.max()).contains(&pool.workers));
        let given: f64 = pool.jobs.iter().map(|j| j.workers).sum();
        let needed: f64 = jobs.iter().map(|j| j.busy_workers).sum();
        prop_assert!(given <= pool.workers as f64 + 1e-9 && given >= needed.min(pool.workers as f64) - 1e-9);
        for (job, share) in jobs.iter().zip(&pool.jobs) {
            prop_assert!(share.workers <= job.busy_workers + 1e-9 && (0.0..=1.0).contains(&share.served));
            if share.workers < job.busy_workers - 1e-9 {
                for (other, theirs) in jobs.iter().zip(&pool.jobs) {
                    prop_assert!(other.priority >= job.priority || theirs.workers <= 1e-9);
                    let fair = other.priority != job.priority
                        || theirs.workers / other.weight <= share.workers / job.weight + 1e-6;
                    prop_assert!(fair, "{share:?} of {job:?} against {theirs:?} of {other:?}");
                }
            }
        }
        let more = [jobs.clone(), vec![PoolJob { name: "more".into(), priority: 0, weight: 1.0, busy_workers: 2.5, spread: 0.0 }]].concat();
        prop_assert!(scale_pool(&more, limits).unwrap().workers >= pool.workers);
    }
}
