//! Arguments of `caju plan`.

use std::path::PathBuf;

use clap::builder::ValueHint;
use clap::{Args, ValueEnum};

/// `caju plan`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju plan profile.json
  caju plan profile.json --format text --plot options.svg
  caju plan - --policy hint:resized < profile.json
  caju plan --replay events/run.jsonl

Policies:
  auto          the shortest time over all epochs left; within 2 % of it what stores least
  compute       stores nothing
  source, full  the first hint, the last one
  hint:NAME     that hint
  cachew        the rule of the Cachew paper, for comparison

docs/plan.md describes the prediction of rates, the profile and the decision.")]
pub(crate) struct PlanArgs {
    /// Measured profile (caju.profile/v1, JSON); - reads standard input
    #[arg(value_name = "PROFILE.json", value_hint = ValueHint::FilePath, required_unless_present = "replay")]
    pub(crate) profile: Option<PathBuf>,
    /// Replay the autocache events of a job, recorded with --record-autocache-events: what is decided, and when
    #[arg(long, value_name = "LOG.jsonl", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["profile", "policy", "plot", "format"])]
    pub(crate) replay: Option<PathBuf>,
    /// Policy that decides: compute, source, full, hint:NAME, cachew or auto
    #[arg(long, value_name = "POLICY", default_value = "auto")]
    pub(crate) policy: String,
    /// The decision as JSON (caju.decision/v1) or as a table; JSON unless standard output is a terminal
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<PlanFormat>,
    /// Draw the predicted rate of each option, and the measured rates of the profile
    #[arg(long, value_name = "OUT.svg|png", value_hint = ValueHint::FilePath)]
    pub(crate) plot: Option<PathBuf>,
}

/// How the decision is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanFormat {
    /// One object (caju.decision/v1)
    Json,
    /// A table, a sentence per option, and the reason
    Text,
}
