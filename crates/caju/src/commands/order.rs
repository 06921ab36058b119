//! In which order the stages of a pipeline run.

use std::collections::BTreeMap;

use caju_pipeline::{DatasetDef, Reorder};
use caju_planner::Profile;
use caju_types::{Error, Result};

use super::plan::read_profile;
use crate::cli::ReorderArgs;

/// Allows another order of stages than the written one, as the flags say.
///
/// # Errors
/// A profile that cannot be read, or is of another pipeline.
pub(super) fn allow(def: &mut DatasetDef, args: &ReorderArgs) -> Result<()> {
    if args.reorder {
        def.options.reorder.get_or_insert_default();
    }
    let Some(path) = &args.reorder_profile else { return Ok(()) };
    let measured = factors(&read_profile(path)?, &def.stage_names());
    if measured.is_empty() {
        return Err(Error::invalid(format!(
            "{}: none of its stages is one of this pipeline; measure it with `caju profile FILE`",
            path.display()
        )));
    }
    def.options.reorder = Some(Reorder { measured });
    Ok(())
}

/// Bytes out per byte in of the stages with these names, to three digits.
fn factors(profile: &Profile, names: &[String]) -> BTreeMap<String, f64> {
    let pairs = profile.stages.iter().zip(profile.stages.iter().skip(1));
    pairs
        .filter(|(above, stage)| above.out_bytes_per_row > 0.0 && names.contains(&stage.name))
        .map(|(above, stage)| {
            let factor = stage.out_bytes_per_row / above.out_bytes_per_row;
            (stage.name.clone(), (factor * 1000.0).round() / 1000.0)
        })
        .collect()
}
