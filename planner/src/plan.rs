//! From a profile and a policy to a decision.

use caju_types::{Error, Result};

use crate::candidate::Candidate;
use crate::decision::{DECISION_SCHEMA, Decision, PlanOption, Times, break_even};
use crate::model::Model;
use crate::policy::Policy;
use crate::profile::Profile;
use crate::{explain, format};

/// Decides: evaluates every option of the profile, lets the policy take one, and explains.
///
/// The same profile and policy give the same decision, byte for byte, also when the profile was written with
/// [`Profile::to_json`] and read again in between.
///
/// # Errors
/// `InvalidArgument` if a field of the profile is wrong or the policy names a hint that it does not have.
///
/// ```
/// # let text = include_str!("../../tests/golden_plans/design-example.profile.json");
/// use caju_planner::{Choice, Policy, Profile, plan};
/// let profile = Profile::from_json(text)?;
/// let forced = plan(&profile, &Policy::Compute)?;
/// assert_eq!(forced.choice, Choice::Compute);
/// let e = plan(&profile, &Policy::Hint("sauce".into())).unwrap_err();
/// assert!(e.to_string().contains("did you mean `source`?"), "{e}");
/// # Ok::<(), caju_types::Error>(())
/// ```
pub fn plan(profile: &Profile, policy: &Policy) -> Result<Decision> {
    profile.validate()?;
    let profile = profile.clone().canonical();
    let model = Model::new(&profile);
    let pick = policy.pick(&model)?;
    if model.candidates().get(pick.candidate).is_none_or(|c| c.obstacle.is_some()) {
        return Err(Error::internal(format!("policy `{policy}` took an option that cannot be taken")));
    }
    let free = *policy == Policy::Auto;
    let mut options: Vec<PlanOption> = model.candidates().iter().map(|c| option(&model, c)).collect();
    let compute = options.first().and_then(Times::of);
    for (i, o) in options.iter_mut().enumerate() {
        let ahead = compute.zip(Times::of(o)).and_then(|(compute, option)| break_even(compute, option));
        o.why = explain::why(&model, i, pick.candidate, ahead, free);
    }
    let choice = options[pick.candidate].choice.clone();
    Ok(Decision {
        schema: DECISION_SCHEMA.into(),
        policy: policy.clone(),
        choice,
        options,
        reason: pick.reason,
    })
}

/// The numbers of an option; its sentence comes when all are known.
fn option(model: &Model, c: &Candidate) -> PlanOption {
    let feasible = c.obstacle.is_none();
    let number = |v: f64| feasible.then(|| format::nine_digits(v));
    let choice = model.choice(c.stored);
    PlanOption {
        choice,
        freezes_random: c.stored.map(|s| model.random_above(s.hint).len() > 0),
        rows_per_s: number(1.0 / c.steady.s_per_row),
        bottleneck: c.steady.limit.name(model.profile()),
        epoch_s: number(c.steady.s_per_row * model.rows()),
        horizon_s: feasible.then_some(c.horizon_s),
        snapshot_bytes: c.snapshot_bytes,
        feasible,
        why: String::new(),
    }
}
