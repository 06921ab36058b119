//! Ways to choose among the options of one model.

mod auto;
mod cachew;
mod fixed;

use std::fmt;

use caju_types::{Error, Result, did_you_mean};

use auto::Auto;
pub use auto::TIE;
use cachew::Cachew;
pub use cachew::gluster_read_ms;
use fixed::{Compute, Full, HintNamed, Source};

use crate::model::Model;

/// The names that [`policy_by_name`] knows.
pub const POLICIES: [&str; 6] = ["compute", "source", "full", "hint:NAME", "cachew", "auto"];

/// The option that a policy takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// Position in [`Model::candidates`].
    pub candidate: usize,
    /// The policy's reason, one sentence.
    pub reason: String,
}

/// A rule that takes one of a model's options.
///
/// ```
/// use caju_planner::{Model, Pick, Policy, Profile, plan};
///
/// /// Whatever stores most.
/// #[derive(Debug)]
/// struct Greedy;
///
/// impl Policy for Greedy {
///     fn name(&self) -> String {
///         "greedy".into()
///     }
///
///     fn pick(&self, model: &Model<'_>) -> caju_types::Result<Pick> {
///         let feasible = model.candidates().iter().enumerate().filter(|(_, c)| c.obstacle.is_none());
///         let most = feasible.max_by_key(|(_, c)| c.snapshot_bytes);
///         Ok(Pick { candidate: most.map_or(0, |(i, _)| i), reason: "More is more.".into() })
///     }
/// }
///
/// # let text = include_str!("../../../tests/golden_plans/design-example.profile.json");
/// assert_eq!(plan(&Profile::from_json(text)?, &Greedy)?.policy, "greedy");
/// # Ok::<(), caju_types::Error>(())
/// ```
pub trait Policy: fmt::Debug + Send + Sync {
    /// Its name, as [`policy_by_name`] takes it.
    fn name(&self) -> String;

    /// Takes a feasible option; computing, the first one, always is.
    ///
    /// # Errors
    /// `InvalidArgument` if the policy names something that the profile does not have.
    fn pick(&self, model: &Model<'_>) -> Result<Pick>;
}

/// The policy of a name: one of [`POLICIES`].
///
/// `compute` never stores, `source` takes the first hint and `full` the last one (computing if there is
/// none), `hint:NAME` that hint; each in the encoding that suits it best. `cachew` is the rule of the Cachew
/// paper with its sums and its static table, and `auto` the shortest horizon.
///
/// # Errors
/// `InvalidArgument` that lists the names.
///
/// ```
/// use caju_planner::policy_by_name;
/// assert_eq!(policy_by_name("hint:resized")?.name(), "hint:resized");
/// let e = policy_by_name("cashew").unwrap_err().to_string();
/// assert!(e.ends_with("did you mean `cachew`?"), "{e}");
/// # Ok::<(), caju_types::Error>(())
/// ```
pub fn policy_by_name(name: &str) -> Result<Box<dyn Policy>> {
    Ok(match name {
        "compute" => Box::new(Compute),
        "source" => Box::new(Source),
        "full" => Box::new(Full),
        "cachew" => Box::new(Cachew),
        "auto" => Box::new(Auto),
        _ => match name.strip_prefix("hint:") {
            Some(hint) if crate::profile::is_name(hint) => Box::new(HintNamed(hint.to_owned())),
            _ => {
                return Err(Error::invalid(format!(
                    "unknown policy `{}`; the policies are {}{}",
                    name.escape_debug(),
                    POLICIES.join(", "),
                    did_you_mean(name, POLICIES)
                )));
            }
        },
    })
}
