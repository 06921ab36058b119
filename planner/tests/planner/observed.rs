//! Rates that options had in earlier epochs of the job that is replanned.

use caju_planner::{Choice, Horizon, Measured, Policy, Profile, plan};

/// What ran is taken as it ran; other snapshots are taken for as worst_overrun as that one was, computing is not.
#[test]
fn epochs_that_ran_correct_the_predictions() {
    let mut profile =
        Profile::from_json(include_str!("../../../tests/golden_plans/design-example.profile.json")).unwrap();
    let mut lz4 = profile.hints[0].encodings[0].clone();
    lz4.compression = "lz4".into();
    lz4.bytes_per_row *= 0.9;
    lz4.decode_cpu_s_per_row = 1.6e-3;
    profile.hints[0].encodings.push(lz4);
    let rates = |profile: &Profile| {
        let decision = plan(profile, &Policy::Auto).unwrap();
        let rates: Vec<f64> = decision.options.iter().map(|o| o.rows_per_s.unwrap()).collect();
        (decision, rates)
    };
    let (first, predicted) = rates(&profile);
    assert_eq!(first.choice.hint(), Some("source"));
    let observe = |rows_per_s: f64| Profile {
        observed: vec![Measured { choice: first.choice.clone(), rows_per_s }],
        ..profile.clone()
    };
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} is not {b}");
    // A tenth of what was promised.
    let (slower, now) = rates(&observe(predicted[1] / 10.0));
    assert_eq!(slower.choice, Choice::Compute);
    near(now[0], predicted[0]);
    near(now[1], predicted[1] / 10.0);
    near(now[2], predicted[2] / 10.0);
    assert!(
        slower.reason.starts_with("Measured, not predicted: reading source arrow/none gave"),
        "{}",
        slower.reason
    );
    assert!(slower.options[1].why.contains("what its epochs showed"), "{}", slower.options[1].why);
    // More than that says nothing of others.
    let (faster, now) = rates(&observe(predicted[1] * 2.0));
    assert_eq!(faster.choice, first.choice);
    near(now[1], predicted[1] * 2.0);
    near(now[2], predicted[2]);
    // And what is observed is a part of the profile: the decision is replayed from its text.
    let profile = observe(predicted[1] / 10.0);
    let again = Profile::from_json(&profile.to_json()).unwrap();
    assert_eq!(rates(&again).0.to_json(), slower.to_json());
}

/// An epoch that computed was slower than predicted. One that computes and stores would not be faster.
#[test]
fn nothing_is_stored_in_the_last_epoch_because_computing_took_longer_than_predicted() {
    let profile =
        Profile::from_json(include_str!("../../../tests/golden_plans/design-example.profile.json")).unwrap();
    let rate = |profile: &Profile| plan(profile, &Policy::Auto).unwrap().options[0].rows_per_s.unwrap();
    for epochs in [1, 90] {
        let horizon = Horizon { epochs: Some(epochs), ..profile.horizon.clone() };
        let observed = vec![Measured { choice: Choice::Compute, rows_per_s: rate(&profile) / 4.0 }];
        let decision = plan(&Profile { observed, horizon, ..profile.clone() }, &Policy::Auto).unwrap();
        let stores = decision.choice != Choice::Compute;
        assert_eq!(stores, epochs == 90, "{epochs}: {}", decision.reason);
    }
}
