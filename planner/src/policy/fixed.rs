//! Policies that do as they are told.

use caju_types::{Error, Result, did_you_mean};

use super::auto::best;
use super::{Pick, Policy};
use crate::model::{Model, Obstacle};

/// Never reads or writes a snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compute;

/// The first hint of the pipeline; computing if there is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source;

/// The last hint of the pipeline; computing if there is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Full;

/// One hint by its name.
#[derive(Debug, Clone)]
pub(crate) struct HintNamed(pub(super) String);

impl Policy for Compute {
    fn name(&self) -> String {
        "compute".into()
    }

    fn pick(&self, _: &Model<'_>) -> Result<Pick> {
        Ok(Pick { candidate: 0, reason: "Policy `compute` runs the whole pipeline in every epoch.".into() })
    }
}

impl Policy for Source {
    fn name(&self) -> String {
        "source".into()
    }

    fn pick(&self, model: &Model<'_>) -> Result<Pick> {
        Ok(forced(model, "source", "the first hint", model.hints().next()))
    }
}

impl Policy for Full {
    fn name(&self) -> String {
        "full".into()
    }

    fn pick(&self, model: &Model<'_>) -> Result<Pick> {
        Ok(forced(model, "full", "the last hint", model.hints().next_back()))
    }
}

impl Policy for HintNamed {
    fn name(&self) -> String {
        format!("hint:{}", self.0)
    }

    fn pick(&self, model: &Model<'_>) -> Result<Pick> {
        let hints = &model.profile().hints;
        let Some(hint) = hints.iter().position(|h| h.name == self.0) else {
            let known = hints.iter().map(|h| h.name.as_str());
            let near = did_you_mean(&self.0, known.clone());
            let names: Vec<_> = known.take(20).map(|n| format!("`{n}`")).collect();
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(Error::invalid(format!(
                "policy `hint:{}`: the profile has no hint of that name; its hints are {names}{near}",
                self.0
            )));
        };
        Ok(forced(model, &self.name(), "this hint", Some(hint)))
    }
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
