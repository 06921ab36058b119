//! Boundaries of `bucket_by_length` that were learnt, in the journal, in messages and for people.

use caju_pipeline::LearntBoundaries;
use caju_proto::v1;
use caju_types::{DatasetId, Error, Fingerprint, Result, hash128};

use crate::definition::Definition;
use crate::state::{Learnt, StageBoundaries, State};

/// Whether a dataset has the boundaries that were learnt for this spelling of a definition.
pub(super) fn is_learnt_from(state: &State, dataset: &DatasetId, definition: &Definition) -> bool {
    let spelling = spelling(definition);
    state.learnt.values().any(|l| l.dataset == *dataset && l.spelling == spelling)
}

/// Names the spelling of a definition.
pub(super) fn spelling(definition: &Definition) -> Fingerprint {
    Fingerprint(hash128(definition.text().as_bytes()))
}

/// What was learnt for a dataset.
pub(super) fn boundaries_of(state: &State, dataset: &DatasetId) -> Vec<v1::LearntBoundaries> {
    let learnt = state.learnt.values().find(|l| l.dataset == *dataset);
    let of_stage = |of: &StageBoundaries| v1::LearntBoundaries {
        stage: of.stage,
        boundaries: of.boundaries.clone(),
        rows: of.rows,
    };
    learnt.into_iter().flat_map(|l| &l.stages).map(of_stage).collect()
}

/// What was learnt for a dataset that a state does not fit; empty: nothing.
pub(super) fn boundaries_text(state: &State, dataset: &DatasetId) -> String {
    let all: Vec<_> =
        boundaries_of(state, dataset).into_iter().map(|of| from_proto(of).to_string()).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!(
            ". The boundaries that were learnt here are {}: if the first rows have changed, give those of the state as a list",
            all.join(", ")
        ),
    }
}

/// # Errors
/// `FailedPrecondition` naming the stage if a worker learnt other boundaries than those that are journaled.
pub(super) fn check_same(known: &Learnt, learnt: &[LearntBoundaries], worker: &str) -> Result<()> {
    let journaled: Vec<_> = known.stages.iter().map(from_journal).collect();
    let same =
        |(a, b): (&LearntBoundaries, &LearntBoundaries)| (a.stage, &a.boundaries) == (b.stage, &b.boundaries);
    let differs = journaled.iter().zip(learnt).find(|pair| !same(*pair));
    let (first, other) = match differs {
        Some((first, other)) => (first.to_string(), other.to_string()),
        None if journaled.len() == learnt.len() => return Ok(()),
        None => (format!("{} stages", journaled.len()), format!("{} stages", learnt.len())),
    };
    Err(Error::failed_precondition(format!(
        "{worker} learnt {other}, and before {first} was learnt from the same definition, which holds: the source has \
         changed, or a stage above gives other rows each time; give the boundaries as a list if the first ones are not wanted"
    )))
}

pub(super) fn from_proto(learnt: v1::LearntBoundaries) -> LearntBoundaries {
    let v1::LearntBoundaries { stage, boundaries, rows } = learnt;
    LearntBoundaries { stage: usize::try_from(stage).unwrap_or(usize::MAX), boundaries, rows }
}

pub(super) fn from_journal(learnt: &StageBoundaries) -> LearntBoundaries {
    let stage = usize::try_from(learnt.stage).unwrap_or(usize::MAX);
    LearntBoundaries { stage, boundaries: learnt.boundaries.clone(), rows: learnt.rows }
}

pub(super) fn to_journal(learnt: &LearntBoundaries) -> Result<StageBoundaries> {
    let stage = u32::try_from(learnt.stage).map_err(|_| Error::internal("a stage's index is too large"))?;
    Ok(StageBoundaries { stage, boundaries: learnt.boundaries.clone(), rows: learnt.rows })
}
