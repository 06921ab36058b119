//! `caju scale`: how many workers a pipeline needs, from a measured profile.

use std::io::IsTerminal;

use caju_planner::{WorkerLimits, scale};
use caju_types::Result;

use super::plan::read_profile;
use crate::cli::{PlanFormat, ScaleArgs};
use crate::output;

/// Prints the number of workers, and every number that was considered.
///
/// # Errors
/// Limits that contradict each other, or a file that is no profile.
pub(crate) fn run(args: &ScaleArgs) -> Result<()> {
    let limits = WorkerLimits::new(args.min_workers, args.max_workers)?;
    let scaling = scale(&read_profile(&args.profile)?, limits)?;
    let default = if std::io::stdout().is_terminal() { PlanFormat::Text } else { PlanFormat::Json };
    match args.format.unwrap_or(default) {
        PlanFormat::Json => output::say(scaling.to_json()),
        PlanFormat::Text => output::say(scaling.to_text().trim_end()),
    }
}
