//! What must hold for every profile.

use caju_planner::{Choice, Decision, Model, PlanOption, Profile, Sharing, TIE, plan};
use proptest::prelude::*;

use crate::naive::{self, Shares};
use crate::strategies;

fn decide(p: &Profile, policy: &str) -> Decision {
    plan(p, &policy.parse().unwrap()).unwrap()
}

fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}

fn hint_of(o: &PlanOption) -> Option<&str> {
    match &o.choice {
        Choice::Compute => None,
        Choice::Materialize { hint, .. } => Some(hint),
    }
}

fn six_digits(o: &PlanOption) -> f64 {
    format!("{:.5e}", o.snapshot_bytes as f64).parse().unwrap()
}

/// Whether a choice follows `auto`'s rule, read off a decision: the shortest horizon, within the tie the fewest bytes, and
/// computing before a snapshot without bytes. Which of those that store as much has most room, the decision does not say.
fn by_rule(d: &Decision, choice: &Choice, admit: impl Fn(&PlanOption) -> bool) -> bool {
    let open: Vec<_> = d.options.iter().filter(|o| o.feasible && admit(o)).collect();
    let horizon = |o: &&&PlanOption| o.horizon_s.unwrap();
    let Some(best) = open.iter().map(|o| horizon(&o)).min_by(f64::total_cmp) else {
        return *choice == Choice::Compute;
    };
    let tied: Vec<_> = open.iter().filter(|o| horizon(o) <= best * (1.0 + TIE)).collect();
    let least = tied.iter().map(|o| six_digits(o)).min_by(f64::total_cmp).unwrap();
    if tied.iter().any(|o| o.choice == Choice::Compute) {
        return *choice == Choice::Compute;
    }
    tied.iter().any(|o| o.choice == *choice && six_digits(o) <= least * (1.0 + TIE))
}

/// The same option, or one that only the rounding to whole bytes and nine digits tells from it.
fn same_choice(a: &Decision, b: &Decision) -> bool {
    let at = |d: &Decision| d.options.iter().position(|o| d.chosen() == Some(o)).unwrap();
    let (x, y) = (&a.options[at(a)], &a.options[at(b)]);
    let numbers = |o: &PlanOption| (o.horizon_s.unwrap(), o.snapshot_bytes as f64);
    let ((time_x, bytes_x), (time_y, bytes_y)) = (numbers(x), numbers(y));
    let tie = time_x.max(time_y) <= time_x.min(time_y) * (1.0 + TIE) * (1.0 + 1e-6);
    at(a) == at(b) || tie && (bytes_x - bytes_y).abs() <= 1e-4 * bytes_x.max(bytes_y) + 128.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn round_trips_and_repeats(p in strategies::profile()) {
        let recorded = Profile::from_json(&p.to_json()).unwrap();
        for policy in ["compute", "source", "full", "cachew", "auto"] {
            let d = decide(&p, policy);
            prop_assert_eq!(d.to_json(), decide(&p, policy).to_json());
            prop_assert_eq!(d.to_json(), decide(&recorded, policy).to_json());
            prop_assert_eq!(Decision::from_json(&d.to_json()).unwrap().choice == Choice::Compute, d.choice == Choice::Compute);
            prop_assert!(d.chosen().is_some(), "the choice is one of the feasible options");
            prop_assert!(!d.to_text().contains("NaN") && !d.to_text().contains("inf "), "{}", d.to_text());
            prop_assert_eq!(d.reason.lines().count(), 1);
            prop_assert!(d.options.iter().all(|o| !o.why.is_empty() && o.why.lines().count() == 1));
        }
    }

    #[test]
    fn agrees_with_the_naive_model(p in strategies::profile()) {
        let model = Model::new(&p);
        let whole = Shares { computed: 1.0, read: 0.0, written: 0.0, near: 0.0 };
        for c in model.candidates() {
            let Some(s) = c.stored else {
                prop_assert!(close(1.0 / c.steady.s_per_row, naive::rate(&p, 0, None, whole)));
                continue;
            };
            let e = &p.hints[s.hint].encodings[s.encoding];
            let above = 1 + p.stages.iter().position(|x| x.name == p.hints[s.hint].after_stage).unwrap();
            let near = if c.obstacle.is_some() { 0.0 } else { naive::near(&p, e, s.fraction) };
            let steady = Shares { computed: 1.0 - s.fraction, read: s.fraction, written: 0.0, near };
            let want = naive::rate(&p, above, Some(e), steady);
            prop_assert!(close(1.0 / c.steady.s_per_row, want), "{:?} wants {want}", c);
            if c.obstacle.is_some() {
                continue;
            }
            let written = (s.fraction - s.existing) / p.source.readings.unwrap_or(1) as f64;
            let near = if written > 0.0 { 0.0 } else { near };
            let first = Shares { computed: 1.0 - s.existing, read: s.existing, written, near };
            prop_assert!(close(1.0 / c.first.s_per_row, naive::rate(&p, above, Some(e), first)));
            let n = model.epochs();
            let horizon = if n == 0.0 { 0.0 } else { model.rows() * (c.first.s_per_row + (n - 1.0) * c.steady.s_per_row) };
            prop_assert!(close(c.horizon_s, horizon));
            prop_assert!((0.0..=1.0).contains(&s.fraction) && s.fraction > 0.0);
            if let Some(b) = p.budget.snapshot_bytes {
                prop_assert!(c.snapshot_bytes as f64 <= b + 0.5, "{:?} over {b}", c);
            } else if s.fraction < 1.0 {
                prop_assert_eq!(s.fraction, s.existing);
            }
        }
    }

    /// What a decision shows, option by option, against the naive evaluator: which options there are, in what
    /// order, and every number of theirs.
    #[test]
    fn decisions_are_the_naive_ones(p in strategies::profile()) {
        let (d, want) = (decide(&p, "auto"), naive::options(&p));
        prop_assert_eq!(d.options.len(), want.len());
        for (o, w) in d.options.iter().zip(&want) {
            let stored = match &o.choice {
                Choice::Compute => None,
                Choice::Materialize { hint, format, compression, fraction } => {
                    prop_assert!((fraction - w.fraction).abs() < 1e-9, "{o:?} {w:?}");
                    Some((hint.clone(), format.clone(), compression.clone()))
                }
            };
            prop_assert_eq!(&stored, &w.stored);
            prop_assert_eq!(o.feasible, w.feasible, "{:?} {:?}", o, w);
            prop_assert!(w.bottlenecks.contains(&o.bottleneck), "{o:?} {w:?}");
            prop_assert_eq!(o.freezes_random, w.stored.is_some().then_some(w.freezes_random));
            prop_assert!(close(o.snapshot_bytes as f64, w.bytes) || (o.snapshot_bytes as f64 - w.bytes).abs() <= 0.5);
            match (o.rows_per_s, o.epoch_s, o.horizon_s) {
                (Some(rate), Some(epoch), Some(horizon)) => {
                    prop_assert!(w.feasible && close(rate, w.rate) && close(horizon, w.horizon_s), "{o:?} {w:?}");
                    prop_assert!(close(epoch, p.source.rows as f64 / w.rate), "{o:?} {w:?}");
                }
                numbers => prop_assert!(!w.feasible && numbers == (None, None, None), "{o:?} {w:?}"),
            }
        }
    }

    #[test]
    fn numbers_are_consistent(p in strategies::profile()) {
        let d = decide(&p, "auto");
        let names = ["cores", "source_store", "cache_store", "network", "consumer"];
        for o in &d.options {
            let stage = o.bottleneck.strip_prefix("stage:");
            prop_assert!(names.contains(&o.bottleneck.as_str()) || p.stages.iter().any(|s| stage == Some(&s.name)));
            prop_assert_eq!(o.feasible, o.rows_per_s.is_some());
            prop_assert_eq!(o.freezes_random.is_some(), hint_of(o).is_some());
            if let (Some(rate), Some(epoch)) = (o.rows_per_s, o.epoch_s) {
                prop_assert!(close(rate * epoch, p.source.rows as f64));
            }
            if let (Some(hint), Some(frozen)) = (hint_of(o), o.freezes_random) {
                let after = &p.hints.iter().find(|h| h.name == hint).unwrap().after_stage;
                let above = 1 + p.stages.iter().position(|s| s.name == *after).unwrap();
                prop_assert_eq!(frozen, p.stages[..above].iter().any(|s| s.random));
            }
        }
        prop_assert_eq!(&d.options[0].choice, &Choice::Compute);
        prop_assert_eq!(d.options[0].snapshot_bytes, 0);
    }

    #[test]
    fn policies_keep_their_word(p in strategies::profile()) {
        let auto = decide(&p, "auto");
        prop_assert!(by_rule(&auto, &auto.choice, |_| true));
        prop_assert_eq!(decide(&p, "compute").choice, Choice::Compute);

        let place = |h: &str| p.stages.iter().position(|s| s.name == h).unwrap();
        let mut order: Vec<_> = p.hints.iter().collect();
        order.sort_by_key(|h| place(&h.after_stage));
        for (policy, hint) in [("source", order.first()), ("full", order.last())] {
            let d = decide(&p, policy);
            prop_assert!(by_rule(&d, &d.choice, |o| hint.is_some_and(|h| hint_of(o) == Some(h.name.as_str()))));
            prop_assert_eq!(&d.options.len(), &auto.options.len());
        }
        for h in &p.hints {
            let d = decide(&p, &format!("hint:{}", h.name));
            prop_assert!(by_rule(&d, &d.choice, |o| hint_of(o) == Some(h.name.as_str())));
        }
        if let Choice::Materialize { hint, .. } = decide(&p, "cachew").choice {
            prop_assert!([order.first(), order.last()].iter().any(|h| h.unwrap().name == hint));
        }
    }

    /// A longer horizon can only make storing worth more.
    #[test]
    fn more_epochs_never_give_up_storing(mut p in strategies::profile(), more in 1u64..1000) {
        p.horizon.epochs = Some(p.horizon.epochs.unwrap_or(10).max(1));
        p.horizon.jobs = Some(1);
        let before = decide(&p, "auto").choice;
        p.horizon.epochs = p.horizon.epochs.map(|n| n + more);
        let after = decide(&p, "auto").choice;
        prop_assert!(before == Choice::Compute || after != Choice::Compute);
    }

    /// Nothing that gets faster makes any option slower.
    /// A row of each of more jobs takes no less, and no more than if none of them shared.
    #[test]
    fn sharing_costs_no_more_than_apart(mut p in strategies::profile(), jobs in 1u64..20, more in 0u64..20) {
        let Some(sharing) = p.sharing.clone() else { return Ok(()) };
        let mut paces = |jobs: u64| {
            p.sharing = Some(Sharing { jobs, ..sharing.clone() });
            Model::new(&p).candidates().iter().map(|c| c.steady.s_per_row).collect::<Vec<_>>()
        };
        let (alone, few, many) = (paces(1), paces(jobs), paces(jobs + more));
        for ((alone, few), many) in alone.iter().zip(&few).zip(&many) {
            prop_assert!(*few >= alone * (1.0 - 1e-9) && *many >= few * (1.0 - 1e-9));
            prop_assert!(*few <= alone * jobs as f64 * (1.0 + 1e-9));
        }
    }

    #[test]
    fn faster_resources_never_hurt(mut p in strategies::profile(), which in 0usize..9, factor in 1.0..10.0f64) {
        if which == 6 {
            // A split then comes to the worker that has it in memory less often.
            p.cache_store.memory_bytes_per_worker = None;
        }
        let mut fast = p.clone();
        let up = |v: &mut Option<f64>| *v = v.map(|v| v * factor);
        match which {
            0 => up(&mut fast.cache_store.read_bytes_per_s),
            1 => up(&mut fast.cache_store.write_bytes_per_s),
            2 => up(&mut fast.source_store.read_bytes_per_s),
            3 => up(&mut fast.cluster.network_bytes_per_s_per_worker),
            4 => up(&mut fast.consumer.rows_per_s),
            5 => fast.cluster.cores_per_worker *= factor,
            6 => fast.cluster.workers += 1,
            7 => up(&mut fast.cache_store.memory_bytes_per_worker),
            _ => fast.stages.iter_mut().for_each(|s| s.cpu_s_per_row /= factor),
        }
        let (slow, fast) = (decide(&p, "auto"), decide(&fast, "auto"));
        for (a, b) in slow.options.iter().zip(&fast.options) {
            prop_assert_eq!(&a.choice, &b.choice);
            if let (Some(a), Some(b)) = (a.rows_per_s.zip(a.horizon_s), b.rows_per_s.zip(b.horizon_s)) {
                prop_assert!(b.0 >= a.0 * (1.0 - 1e-8) && b.1 <= a.1 * (1.0 + 1e-8), "{a:?} {b:?}");
            }
        }
    }

    /// Only ratios matter: another unit of time, or of bytes, gives the same choice.
    #[test]
    fn units_do_not_matter(p in strategies::profile(), exponent in -6i32..6) {
        // Powers of two, so that not even the last digit moves.
        let k = 2f64.powi(exponent);
        let scale = |v: &mut Option<f64>, k: f64| *v = v.map(|v| v * k);
        let mut bytes = p.clone();
        scale(&mut bytes.cluster.network_bytes_per_s_per_worker, k);
        scale(&mut bytes.source_store.read_bytes_per_s, k);
        scale(&mut bytes.cache_store.read_bytes_per_s, k);
        scale(&mut bytes.cache_store.write_bytes_per_s, k);
        scale(&mut bytes.cache_store.memory_bytes_per_worker, k);
        scale(&mut bytes.budget.snapshot_bytes, k);
        for s in &mut bytes.stages {
            s.io_bytes_per_row *= k;
            s.out_bytes_per_row *= k;
        }
        bytes.hints.iter_mut().flat_map(|h| &mut h.encodings).for_each(|e| e.bytes_per_row *= k);
        prop_assert!(same_choice(&decide(&p, "auto"), &decide(&bytes, "auto")));

        let mut time = p.clone();
        for v in [
            &mut time.cluster.network_bytes_per_s_per_worker,
            &mut time.source_store.read_bytes_per_s,
            &mut time.cache_store.read_bytes_per_s,
            &mut time.cache_store.write_bytes_per_s,
            &mut time.consumer.rows_per_s,
        ] {
            scale(v, 1.0 / k);
        }
        for s in &mut time.stages {
            s.cpu_s_per_row *= k;
            s.service_s_per_row *= k;
        }
        for e in time.hints.iter_mut().flat_map(|h| &mut h.encodings) {
            e.encode_cpu_s_per_row *= k;
            e.decode_cpu_s_per_row *= k;
        }
        let (one, other) = (Model::new(&p), Model::new(&time));
        // A pipeline without any cost is as fast in every unit.
        prop_assume!(one.candidates().iter().all(|c| c.steady.s_per_row > 1e-12));
        for (a, b) in one.candidates().iter().zip(other.candidates()) {
            prop_assert!(close(a.horizon_s * k, b.horizon_s));
        }
        prop_assert!(same_choice(&decide(&p, "auto"), &decide(&time, "auto")));
    }

    /// The epoch from which an option is ahead is the first at whose end it has taken no longer.
    #[test]
    fn break_even_is_the_first_epoch_ahead(p in strategies::profile()) {
        let d = decide(&p, "auto");
        let model = Model::new(&p);
        let compute = model.candidates()[0].steady.s_per_row;
        for (c, o) in model.candidates().iter().zip(&d.options) {
            let Some(n) = d.break_even_epoch(o) else { continue };
            let behind = |n: f64| (c.first.s_per_row + (n - 1.0) * c.steady.s_per_row) / (n * compute) - 1.0;
            let n = n as f64;
            // Options that gain next to nothing are beyond the nine digits of a decision.
            if c.steady.s_per_row < compute * (1.0 - 1e-4) {
                prop_assert!(behind(n) <= 1e-6, "epoch {n}: {}", behind(n));
                prop_assert!(n == 1.0 || behind(n - 1.0) >= -1e-6, "epoch {} is ahead already", n - 1.0);
            }
        }
    }
}
