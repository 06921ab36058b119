//! The interface to the functions in expressions. This crate knows no function itself.

use std::collections::BTreeMap;

use caju_types::Result;

/// The registry of functions, as definitions use it. `caju-kernels` implements it.
///
/// A definition has its expressions as text. An implementation parses them, and returns what a fingerprint needs: the called
/// functions and their versions, whether an expression draws random numbers, and its canonical spelling.
///
/// # Errors
/// Every method that takes an expression fails with `InvalidArgument` if it does not parse or calls an unknown function. The
/// caller adds the place in the definition.
pub trait Functions {
    /// The functions that the expression calls, with their versions: each once, in any order.
    fn version(&self, sql: &str) -> Result<Vec<(String, u32)>>;

    /// Whether the expression draws random numbers, so that each epoch gives other values.
    fn is_random(&self, sql: &str) -> Result<bool>;

    /// The canonical spelling of the expression. It does not depend on white space, on the letter case of keywords, or on
    /// superfluous parentheses.
    fn canonical(&self, sql: &str) -> Result<String>;

    /// The libraries whose versions may change computed values: `arrow`, `datafusion`, `parquet`, codecs.
    fn engine_versions(&self) -> BTreeMap<String, String>;

    /// Those of [`Functions::engine_versions`] on which the expression's value depends; all by default. With fewer,
    /// snapshots outlive the upgrade of a codec that they never used.
    fn engines_used(&self, sql: &str) -> Result<Vec<String>> {
        let _ = sql;
        Ok(self.engine_versions().into_keys().collect())
    }

    /// Whether the digests that definitions give for the code of Python functions are trusted. They are where functions run
    /// for the author of the definition. Elsewhere a client could store rows under the digest of another user's code: there
    /// the fingerprint covers the functions as they were sent.
    fn trusts_code(&self) -> bool {
        true
    }
}
