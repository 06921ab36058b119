//! What this crate must know about the functions in expressions, without knowing any function.

use std::collections::BTreeMap;

use caju_types::Result;

/// The registry of functions, seen from a definition: implemented by `caju-kernels`.
///
/// A definition holds its expressions as text. Whoever can parse them says here what a fingerprint needs:
/// which functions an expression calls and in which version, whether it draws random numbers, and one
/// spelling for all the ways of writing the same expression.
///
/// # Errors
/// Every method that takes an expression fails with `InvalidArgument` if it does not parse or calls an
/// unknown function; the caller adds the place in the definition.
pub trait Functions {
    /// The functions that the expression calls, each once, with their versions, in any order.
    fn version(&self, sql: &str) -> Result<Vec<(String, u32)>>;

    /// Whether the expression draws random numbers, so that a new epoch gives other values.
    fn is_random(&self, sql: &str) -> Result<bool>;

    /// One spelling of the expression: white space, letter case of keywords and superfluous parentheses do
    /// not show in it.
    fn canonical(&self, sql: &str) -> Result<String>;

    /// The libraries whose versions may change what is computed: `arrow`, `datafusion`, `parquet`, codecs.
    fn engine_versions(&self) -> BTreeMap<String, String>;

    /// Which of [`Functions::engine_versions`] the expression's value depends on. All, unless the registry
    /// knows better; naming fewer lets snapshots outlive the upgrade of a codec that they never used.
    fn engines_used(&self, sql: &str) -> Result<Vec<String>> {
        let _ = sql;
        Ok(self.engine_versions().into_keys().collect())
    }

    /// Whether the names that definitions give to the code of functions in Python are believed. They are where the
    /// functions run for whoever wrote the definition. Elsewhere anybody could store rows under a name that somebody
    /// else's code has: then what is stored is named after the functions themselves, as they were sent.
    fn believes_code(&self) -> bool {
        true
    }
}
