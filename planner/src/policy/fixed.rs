//! Policies that name their option: computing, or one hint.

use caju_types::{Error, Result, did_you_mean};

use super::Pick;
use super::auto::best;
use crate::candidate::Obstacle;
use crate::model::Model;

/// Never reads or writes a snapshot.
pub(super) fn compute() -> Pick {
    Pick { candidate: 0, reason: "Policy `compute` runs the whole pipeline in every epoch.".into() }
}

/// The first hint of the pipeline; computing if there is none.
pub(super) fn source(model: &Model<'_>) -> Pick {
    forced(model, "source", "the first hint", model.hints().next())
}

/// The last hint of the pipeline; computing if there is none.
pub(super) fn full(model: &Model<'_>) -> Pick {
    forced(model, "full", "the last hint", model.hints().next_back())
}

/// One hint by its name.
///
/// # Errors
/// `InvalidArgument` if the profile has no hint of that name.
pub(super) fn hint(model: &Model<'_>, name: &str) -> Result<Pick> {
    let hints = &model.profile().hints;
    let Some(hint) = hints.iter().position(|h| h.name == name) else {
        let known = hints.iter().map(|h| h.name.as_str());
        let near = did_you_mean(name, known.clone());
        let names: Vec<_> = known.take(20).map(|n| format!("`{n}`")).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(Error::invalid(format!(
            "policy `hint:{name}`: the profile has no hint of that name; its hints are {names}{near}"
        )));
    };
    Ok(forced(model, &format!("hint:{name}"), "this hint", Some(hint)))
}

/// The best encoding of one hint, whatever computing would give.
fn forced(model: &Model<'_>, policy: &str, which: &str, hint: Option<usize>) -> Pick {
    let compute =
        |why: &str| Pick { candidate: 0, reason: format!("Policy `{policy}` computes, because {why}.") };
    let Some(hint) = hint else { return compute("the pipeline has no hint") };
    let name = &model.profile().hints[hint].name;
    let of_hint = |i: usize| model.candidates()[i].stored.is_some_and(|s| s.hint == hint);
    if let Some(candidate) = best(model, of_hint) {
        let reason = format!("Policy `{policy}` stores {which}, `{name}`, whatever computing would give.");
        return Pick { candidate, reason };
    }
    let first = (0..model.candidates().len()).find(|&i| of_hint(i));
    match first.and_then(|i| model.candidates()[i].obstacle) {
        None => compute(&format!("no encoding was measured at `{name}`")),
        Some(Obstacle::NoBudget) => compute(&format!("the byte budget holds nothing of `{name}`")),
        Some(Obstacle::NotWhole) => {
            compute(&format!("`{name}` must be stored whole and the byte budget holds only a part"))
        }
    }
}
