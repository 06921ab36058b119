//! How random stages drew, as messages.

use caju_types::EpochDraws;

use crate::v1;

impl From<&EpochDraws> for v1::EpochDraws {
    fn from(draws: &EpochDraws) -> Self {
        let EpochDraws { frozen_at, permille, chosen_by_set } = draws;
        Self { frozen_at: frozen_at.clone(), permille: *permille, chosen_by_set: *chosen_by_set }
    }
}

impl From<&v1::EpochDraws> for EpochDraws {
    fn from(draws: &v1::EpochDraws) -> Self {
        let v1::EpochDraws { frozen_at, permille, chosen_by_set } = draws;
        Self { frozen_at: frozen_at.clone(), permille: *permille, chosen_by_set: *chosen_by_set }
    }
}
