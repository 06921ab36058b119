//! Kubernetes' and Cachew's rules for the number of workers, against ours on Cachew's Figure 6a.

use caju_planner::{CachewScaler, Hpa, ScalingPolicy, ScalingSample, WorkerLimits};

use crate::scaling_cases::cases;

/// Seconds of an epoch by the number of workers, from the paper. It has no numbers for 6 and 7: they lie between 5 and 8.
const FIGURE_6A: [f64; 8] = [1730.0, 870.0, 645.0, 550.0, 510.0, 505.0, 500.0, 495.0];

/// What a number of workers shows. Input pipelines do not fill the cores of a worker: here they use 55 % of them as long as
/// the workers are the bottleneck, which is below the target of 80 % that HPA had.
fn measure(workers: u64) -> ScalingSample {
    let epoch_s = FIGURE_6A[usize::try_from(workers).unwrap() - 1];
    ScalingSample { cpu_utilization: 0.55 * 1730.0 / epoch_s / workers as f64, batch_s: epoch_s / 5005.0 }
}

fn cost(workers: u64) -> f64 {
    (8.0 + 0.38 * workers as f64) * FIGURE_6A[usize::try_from(workers).unwrap() - 1] / 3600.0
}

/// Ours takes one step to within 5 % of the cheapest number that the paper measured; HPA stays at one worker, and pays 2.8
/// times as much.
#[test]
fn figure_6a_of_cachew() {
    let profile = cases().into_iter().find(|c| c.name == "cachew-figure6a").unwrap().read();
    let limits = WorkerLimits::new(1, 8).unwrap();
    let steps =
        |policy: &str| policy.parse::<ScalingPolicy>().unwrap().steps(&profile, limits, measure).unwrap();
    let best = (1..=8).map(cost).fold(f64::INFINITY, f64::min);
    let auto = steps("auto");
    assert_eq!(auto, [1, 4]);
    assert!(cost(4) <= best * 1.05, "{} against {best}", cost(4));
    assert_eq!(steps("hpa"), [1]);
    assert!(cost(1) > 2.7 * cost(4));
    // Without the noise of the paper's batch times Cachew's rule takes five steps, and ends one worker later than there.
    assert_eq!(steps("cachew"), [1, 2, 3, 4, 5, 6, 5]);
}

#[test]
fn hpa_follows_the_utilisation() {
    let hpa = Hpa { target_utilization: 0.5 };
    let wants = |workers, utilization| hpa.desired(workers, utilization);
    assert_eq!(
        [wants(1, 1.0), wants(4, 1.0), wants(3, 0.55), wants(3, 0.56), wants(10, 0.1)],
        [2, 8, 3, 4, 2]
    );
    assert_eq!(wants(4, 0.0), 0, "the limits hold the number up");
}

#[test]
fn cachew_goes_one_worker_at_a_time() {
    // Batches without a further worker take 1 s, so this number of workers is worth it.
    let run = |from: u64, useful: u64, reports: usize| {
        let (mut cachew, mut workers) = (CachewScaler::new(from), from);
        let mut path = vec![from];
        for _ in 0..reports {
            let next = cachew.on_batch_time(1.0 / workers.min(useful) as f64);
            if next != workers {
                path.push(next);
            }
            workers = next;
        }
        path
    };
    assert_eq!(run(1, 4, 12), [1, 2, 3, 4, 5, 4]);
    assert_eq!(run(6, 4, 12), [6, 7, 5, 4, 3, 4], "too many: down until a loss shows");
    assert_eq!(run(1, 1, 12), [1, 2, 1]);
    assert_eq!(run(4, 4, 40), [4, 5, 3, 4, 5, 3, 4], "after 20 reports it looks again");
}

/// A batch time that more than doubles is an outlier of the client's clock, not of the workers.
#[test]
fn cachew_discards_wild_times() {
    let mut cachew = CachewScaler::new(1);
    assert_eq!([1.0, 9.0, 0.5].map(|t| cachew.on_batch_time(t)), [2, 2, 3]);
}

#[test]
fn scaling_policies_have_names() {
    for name in ["auto", "hpa:0.8", "hpa:0.25", "cachew"] {
        assert_eq!(name.parse::<ScalingPolicy>().unwrap().to_string(), name);
    }
    for bad in ["hpa:0", "hpa:1.5", "hpa:x", "", "cashew"] {
        let e = bad.parse::<ScalingPolicy>().unwrap_err().to_string();
        assert!(
            e.starts_with(&format!("unknown scaling policy `{bad}`; the policies are auto, hpa, cachew")),
            "{e}"
        );
    }
}
