//! Whether a job shares computed rows with other jobs.

use serde::{Deserialize, Serialize};

/// Whether a job shares computed rows with other jobs that run at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// It computes its rows itself.
    #[default]
    Off,
    /// Its rows may be computed by other jobs. It gets each of them exactly once.
    Exact,
    /// As `Exact`, but rows that another job computed and that no window has any more are left out.
    Relaxed,
}

impl Sharing {
    /// The name in flags and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Sharing::Off => "off",
            Sharing::Exact => "exact",
            Sharing::Relaxed => "relaxed",
        }
    }

    /// Whether other jobs may compute its rows.
    pub fn is_shared(self) -> bool {
        self != Sharing::Off
    }
}
