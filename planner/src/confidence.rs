//! How sure a choice is: whether several observations of the same epoch agree on it.
//!
//! One profile says which option is ahead. It does not say whether another second of the same epoch would agree. Observations of
//! disjoint sample windows are nearly independent (the method of batch means). What slows all options alike, such as a busy
//! neighbour, cancels out in the *ratio* of two options within one observation. The interval is that of the mean logarithm of
//! the ratio, by Student's t.
//!
//! A decision has to be made after two or three observations. The spread of so few values is a poor estimate, so it is combined
//! with the spread of earlier measurements (a fifth), weighted like three degrees of freedom. A single observation then settles
//! what is far apart, and two that happen to agree do not settle what is close.

use caju_types::Result;

use crate::candidate::TIE;
use crate::choice::Choice;
use crate::decision::Decision;
use crate::model::Model;
use crate::policy::Policy;
use crate::profile::{Encoding, Hint, Profile};

/// Two-sided 95 % points of Student's t by degrees of freedom, from 1.
const T95: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
];
/// The standard deviation of the logarithm of a ratio between observations, by earlier measurements.
const PRIOR_DEVIATION: f64 = 0.2;
/// The degrees of freedom that those measurements count for.
const PRIOR_FREEDOM: usize = 3;
/// The point beyond the table: that of 15 degrees of freedom, which is on the safe side.
const T95_MANY: f64 = 2.131;

/// How far a rival is behind the choice: its horizon over the choice's, with a 95 % confidence interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Margin {
    /// The hint that the rival stores at; `None` is computing.
    pub rival: Option<String>,
    /// The mean ratio; above 1 the rival takes longer.
    pub ratio: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// Whether at least two observations agree that it is a tie.
    pub tie: bool,
}

impl Margin {
    /// Whether it is settled: the rival is behind by more than a factor of `ahead`, or within the planner's tie on
    /// both sides, where it does not matter.
    pub fn is_settled(&self, ahead: f64) -> bool {
        self.low > ahead || self.tie
    }
}

/// How far the best option of every other hint, and computing, are behind the best option of the chosen hint, over several
/// observations. An observation in which one of the two is infeasible says nothing about that pair.
///
/// ```
/// # let text = include_str!("../../tests/golden_plans/design-example.profile.json");
/// use caju_planner::{Policy, Profile, margins, plan};
/// let mut observations = Vec::new();
/// for slower in [1.0, 1.02, 0.99] {
///     let mut profile = Profile::from_json(text)?;
///     profile.stages.iter_mut().for_each(|s| s.cpu_s_per_row *= slower);
///     observations.push(plan(&profile, &Policy::Auto)?);
/// }
/// let margins = margins(&observations[0].choice, &observations);
/// assert!(margins.iter().all(|m| m.low <= m.ratio && m.ratio <= m.high));
/// # Ok::<(), caju_types::Error>(())
/// ```
pub fn margins(choice: &Choice, observations: &[Decision]) -> Vec<Margin> {
    let ours = choice.hint();
    let mut rivals: Vec<Option<&str>> = Vec::new();
    for option in observations.iter().flat_map(|l| &l.options) {
        let rival = option.choice.hint();
        if rival != ours && !rivals.contains(&rival) {
            rivals.push(rival);
        }
    }
    let margin = |rival: Option<&str>| {
        let logs: Vec<f64> = observations.iter().filter_map(|l| log_ratio(l, ours, rival)).collect();
        let (mean, half) = interval(&logs, PRIOR_FREEDOM)?;
        let tie = interval(&logs, 0)
            .is_some_and(|(mean, half)| (mean - half).exp() > 1.0 - TIE && (mean + half).exp() < 1.0 + TIE);
        let rival = rival.map(str::to_string);
        Some(Margin { rival, ratio: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp(), tie })
    };
    rivals.into_iter().filter_map(margin).collect()
}

/// The logarithm of the rival's horizon over ours, each by its best encoding.
fn log_ratio(observation: &Decision, ours: Option<&str>, rival: Option<&str>) -> Option<f64> {
    let best = |wanted: Option<&str>| {
        let options = observation.options.iter().filter(|o| o.feasible && o.choice.hint() == wanted);
        options.filter_map(|o| o.horizon_s).min_by(f64::total_cmp)
    };
    let log = (best(rival)? / best(ours)?).ln();
    log.is_finite().then_some(log)
}

/// The mean, and half the width of its 95 % interval, with this many degrees of freedom from earlier measurements.
#[expect(clippy::cast_precision_loss, reason = "few observations")]
fn interval(values: &[f64], prior_freedom: usize) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    let freedom = (prior_freedom + values.len()).checked_sub(1).filter(|f| *f > 0 && n > 0.0)?;
    let mean = values.iter().sum::<f64>() / n;
    let seen: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let variance = (seen + prior_freedom as f64 * PRIOR_DEVIATION.powi(2)) / freedom as f64;
    let t = T95.get(freedom - 1).copied().unwrap_or(T95_MANY);
    Some((mean, t * (variance / n).sqrt()))
}

/// What a decision may lose by errors of the probes that it rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeErrorLoss {
    /// Seconds of the horizon.
    pub seconds: f64,
    /// What would have been chosen.
    pub rival: Choice,
}

/// What a decision would lose in its horizon by the worst errors of its probes. `error` gives the relative error for a hint and
/// encoding: the chosen option is taken to cost that much more to encode and decode, every other one that much less. None if
/// the choice is the same even then: another probe cannot change it.
///
/// ```
/// # let text = include_str!("../../tests/golden_plans/design-example.profile.json");
/// use caju_planner::{Policy, Profile, probe_error_loss, plan};
/// let profile = Profile::from_json(text)?;
/// let decision = plan(&profile, &Policy::Auto)?;
/// assert_eq!(probe_error_loss(&profile, &decision.choice, &Policy::Auto, |_, _| 0.0)?, None);
/// # Ok::<(), caju_types::Error>(())
/// ```
///
/// # Errors
/// Those of [`plan`](crate::plan).
pub fn probe_error_loss(
    profile: &Profile,
    choice: &Choice,
    policy: &Policy,
    error: impl Fn(&Hint, &Encoding) -> f64,
) -> Result<Option<ProbeErrorLoss>> {
    let mut against = profile.clone();
    for (hint, known) in against.hints.iter_mut().zip(&profile.hints) {
        for e in &mut hint.encodings {
            let chosen = matches!(choice, Choice::Materialize { hint, format, compression, .. }
                if (hint, format, compression) == (&known.name, &e.format, &e.compression));
            let error = error(known, e).max(0.0);
            let times = if chosen { 1.0 + error } else { 1.0 / (1.0 + error) };
            e.encode_cpu_s_per_row *= times;
            e.decode_cpu_s_per_row *= times;
        }
    }
    against.validate()?;
    let against = against.canonical();
    let model = Model::new(&against);
    let rival = &model.candidates()[policy.pick(&model)?.candidate];
    let like = model.candidates().iter().filter(|c| c.obstacle.is_none());
    let like = like.filter_map(|c| Some((model.choice(c.stored).apart(choice)?, c)));
    let ours = like.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(rival, |(_, ours)| ours);
    // Options with equal times per row may differ by a tenth where two limits are close.
    let seconds = ours.horizon_with_interference_s() - rival.horizon_with_interference_s();
    Ok((seconds > 0.0).then(|| ProbeErrorLoss { seconds, rival: model.choice(rival.stored) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{DECISION_SCHEMA, PlanOption};

    fn option(hint: Option<&str>, horizon_s: f64) -> PlanOption {
        let choice = hint.map_or(Choice::Compute, |hint| Choice::Materialize {
            hint: hint.into(),
            format: "arrow".into(),
            compression: "none".into(),
            fraction: 1.0,
        });
        PlanOption {
            choice,
            freezes_random: None,
            rows_per_s: None,
            bottleneck: "cores".into(),
            epoch_s: None,
            horizon_s: Some(horizon_s),
            snapshot_bytes: 0,
            feasible: true,
            why: String::new(),
        }
    }

    /// Observations with the horizons of computing, `a` and `b`; `a` is the choice.
    fn observations(times: &[[f64; 3]]) -> Vec<Margin> {
        let observation = |t: &[f64; 3]| Decision {
            schema: DECISION_SCHEMA.into(),
            policy: crate::Policy::Auto,
            choice: Choice::Compute,
            options: vec![option(None, t[0]), option(Some("a"), t[1]), option(Some("b"), t[2])],
            reason: String::new(),
        };
        margins(&option(Some("a"), 0.0).choice, &times.iter().map(observation).collect::<Vec<_>>())
    }

    #[test]
    fn one_observation_settles_what_is_far_apart_and_nothing_else() {
        let margins = observations(&[[100.0, 10.0, 15.0]]);
        assert_eq!(margins.len(), 2);
        assert!(margins[0].is_settled(1.3) && !margins[1].is_settled(1.0), "{margins:?}");
        assert!(!observations(&[[10.0, 10.0, 10.0]])[0].tie, "one observation shows no tie");
    }

    #[test]
    fn two_observations_that_happen_to_agree_do_not_settle_what_is_close() {
        let margins = observations(&[[11.5, 10.0, 50.0], [11.5, 10.0, 50.0]]);
        assert!(!margins[0].is_settled(1.0) && margins[1].is_settled(1.3), "{margins:?}");
    }

    #[test]
    fn observations_that_agree_settle_it() {
        let margins = observations(&[[100.0, 10.0, 50.0], [103.0, 10.1, 51.0], [98.0, 9.9, 50.2]]);
        assert!(margins.iter().all(|m| m.is_settled(1.3)), "{margins:?}");
        let compute = margins.iter().find(|m| m.rival.is_none()).unwrap();
        assert!((compute.ratio - 10.0).abs() < 0.2, "{compute:?}");
    }

    #[test]
    fn noise_of_all_options_alike_does_not_matter_but_of_one_does() {
        assert!(observations(&[[30.0, 10.0, 30.0], [90.0, 30.0, 90.0]]).iter().all(|m| m.is_settled(1.3)));
        let noisy = observations(&[[11.0, 10.0, 50.0], [19.0, 10.0, 50.0], [9.0, 10.0, 50.0]]);
        assert!(!noisy.iter().find(|m| m.rival.is_none()).unwrap().is_settled(1.0), "{noisy:?}");
    }

    #[test]
    fn a_tie_is_settled_too() {
        let tied = observations(&[[10.05, 10.0, 50.0], [10.06, 10.0, 50.0], [10.04, 10.0, 50.0]]);
        assert!(tied.iter().find(|m| m.rival.is_none()).unwrap().is_settled(1.3), "{tied:?}");
    }

    #[test]
    fn an_option_that_cannot_be_taken_is_no_rival() {
        assert_eq!(margins(&Choice::Compute, &[]), []);
    }

    #[test]
    fn what_is_close_is_at_stake_and_what_is_far_apart_is_not() {
        let text = include_str!("../../tests/golden_plans/design-example.profile.json");
        let mut profile = Profile::from_json(text).unwrap();
        // The cores decide, and half as many bytes are a little more expensive to decode.
        let plain = profile.hints[0].encodings[0].clone();
        let mut half = plain.clone();
        (half.compression, half.bytes_per_row) = ("zstd".into(), plain.bytes_per_row / 2.0);
        half.decode_cpu_s_per_row = 1.8e-3;
        profile.hints[0].encodings = vec![plain, half];
        let probe_error_loss = |profile: &Profile, off: f64| {
            let decision = crate::plan(profile, &Policy::Auto).unwrap();
            probe_error_loss(profile, &decision.choice, &Policy::Auto, |_, _| off).unwrap()
        };
        assert_eq!(probe_error_loss(&profile, 0.0), None, "without errors");
        let stake = probe_error_loss(&profile, 0.5).unwrap();
        assert!(stake.seconds > 1.0 && stake.rival.to_string() == "source arrow/zstd", "{stake:?}");
        // The store holds both up alike, and what decoding takes is nearly as short.
        let mut tied = profile.clone();
        tied.cache_store.read_bytes_per_s = Some(tied.hints[0].encodings[1].bytes_per_row / 2.5e-4);
        tied.hints[0].encodings.remove(0);
        let mut other = tied.hints[0].encodings[0].clone();
        (other.format, other.decode_cpu_s_per_row) = ("parquet".into(), 1.8e-3);
        tied.hints[0].encodings[0].decode_cpu_s_per_row = 1.7e-3;
        tied.hints[0].encodings.push(other);
        let stake = probe_error_loss(&tied, 0.1).unwrap();
        assert!(stake.seconds > 1.0 && stake.rival.to_string() == "source parquet/zstd", "{stake:?}");
        let mut rest = profile.stages[0].clone();
        (rest.name, rest.io_bytes_per_row, rest.cpu_s_per_row) = ("augment".into(), 0.0, 10.0);
        profile.stages.push(rest);
        assert_eq!(probe_error_loss(&profile, 0.5), None, "something else is all that counts");
    }
}
