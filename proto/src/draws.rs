//! How random stages drew, as messages.

use caju_types::EpochDraws;

use crate::v1;

impl From<&EpochDraws> for v1::EpochDraws {
    fn from(draws: &EpochDraws) -> Self {
        let EpochDraws { frozen_at, permille, chosen_by_set, set_attempt } = draws.clone();
        Self { frozen_at, permille, chosen_by_set, set_attempt }
    }
}

impl From<&v1::EpochDraws> for EpochDraws {
    fn from(draws: &v1::EpochDraws) -> Self {
        let v1::EpochDraws { frozen_at, permille, chosen_by_set, set_attempt } = draws.clone();
        Self { frozen_at, permille, chosen_by_set, set_attempt }
    }
}
