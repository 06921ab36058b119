//! Whether stages may run in another order than the written one.

use std::collections::BTreeMap;

/// Allows stages to run in another order than the written one, where that gives the same rows.
///
/// The engine moves stages that shrink rows up and stages that grow them down, as AutoOrder of the Pecan paper (ATC'24) does. A
/// stage's position in the definition stays its identity: draws, messages and fingerprints are those of the written order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reorder {
    /// Measured bytes out per byte in, by the name of a stage as a profile has it: `1.with_columns` is `steps[1]`. The factor
    /// of a stage that is not named is estimated from its operator and its types.
    pub measured: BTreeMap<String, f64>,
}
