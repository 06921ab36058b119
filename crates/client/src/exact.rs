//! Which epochs can be continued exactly from a state within them.

use caju_pipeline::DatasetDef;
use caju_types::{Error, Result};

use crate::state::ReaderState;

/// Why an epoch of a definition cannot be continued exactly; none if it can.
pub(crate) fn why_not_exact(def: &DatasetDef) -> Option<String> {
    let (function, generator) = def.draws_from()?;
    Some(format!(
        "function `{function}` draws from {generator}, and would draw other rows; draw from caju.rng() for each row, or say random=True \
         where it is added, if that does not matter"
    ))
}

/// Whether an epoch of a definition can be continued exactly from states.
///
/// # Errors
/// `Unimplemented` for states within the epoch if it cannot.
pub(crate) fn check_exact(def: &DatasetDef, states: &[ReaderState]) -> Result<()> {
    let Some(state) = states.iter().find(|state| state.is_within_epoch()) else { return Ok(()) };
    let Some(why) = why_not_exact(def) else { return Ok(()) };
    Err(Error::unimplemented(format!(
        "the state is {} elements into epoch {}, which cannot be continued exactly here: {why}",
        state.elements, state.epoch
    )))
}
