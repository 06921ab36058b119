//! Arguments of `caju scale`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::ValueHint;

use super::PlanFormat;

/// `caju scale`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju scale profile.json
  caju scale profile.json --max-workers 16 --format text
  caju scale - < profile.json

With `prices` in the profile the number with the cheapest epoch is chosen, without them the fewest workers with which the \
consumers (`consumer.rows_per_s`) do not wait. docs/scaling.md describes the rule, the profile and the answer.")]
pub(crate) struct ScaleArgs {
    /// Measured profile (caju.profile/v1, JSON); - reads standard input
    #[arg(value_name = "PROFILE.json", value_hint = ValueHint::FilePath)]
    pub(crate) profile: PathBuf,
    /// The fewest workers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) min_workers: u64,
    /// The most workers
    #[arg(long, value_name = "N", default_value_t = caju_planner::DEFAULT_MAX_WORKERS)]
    pub(crate) max_workers: u64,
    /// The answer as JSON (caju.scaling/v1) or as a table; JSON unless standard output is a terminal
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<PlanFormat>,
}
