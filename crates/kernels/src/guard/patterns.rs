//! The memory of compiled regular expressions.
//!
//! A regular expression of a few characters may take megabytes when it is compiled: `(a{1000}){200}`. The `regex` crate refuses
//! one of more than 10 MiB. A definition may have many, and a column of patterns has one per row, all of which a function of
//! DataFusion keeps while it computes a chunk.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caju_pipeline::content_name;
use caju_runtime::budget;
use caju_types::{Error, Result, format_bytes};
use regex::RegexBuilder;

use super::size::Arg;

/// The bytes up to which a compiled pattern is small, and not counted: most patterns are. An expression has at most a few
/// thousand words, so the small ones in it take less memory than a chunk.
const SMALL_BYTES: usize = 64 << 10;

/// The most bytes of one compiled pattern: the limit of the `regex` crate, with which DataFusion and Arrow compile.
const MAX_BYTES: usize = 10 << 20;

/// The most bytes of all compiled patterns in a definition. Compiling them takes about a second.
const MAX_DEFINITION_BYTES: u64 = 64 << 20;

/// The bytes of a compiled pattern, up to a factor of two: 0 for a small one, and for one that is no regular expression. None if
/// it takes more than the `regex` crate allows.
fn compiled_bytes(pattern: &str) -> Option<u64> {
    if is_small(pattern) {
        return Some(0);
    }
    // Most patterns that are too large are far too large: they are compiled once.
    if is_too_big(pattern, MAX_BYTES) {
        return None;
    }
    let mut limit = 2 * SMALL_BYTES;
    while limit < MAX_BYTES && is_too_big(pattern, limit) {
        limit *= 2;
    }
    Some(limit.min(MAX_BYTES) as u64)
}

/// Whether a pattern takes more than `limit` bytes when it is compiled. One that is no regular expression takes none.
fn is_too_big(pattern: &str, limit: usize) -> bool {
    let built = RegexBuilder::new(pattern).size_limit(limit).build();
    matches!(built, Err(regex::Error::CompiledTooBig(_)))
}

fn is_small(pattern: &str) -> bool {
    !is_too_big(pattern, SMALL_BYTES)
}

/// As [`is_small`], of the pattern of a call. Each chunk asks for the same one, and compiling it takes longer than a small chunk.
fn is_small_again(pattern: &str) -> bool {
    thread_local! {
        static LAST: RefCell<Option<(String, bool)>> = const { RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| match last {
        Some((known, is_small)) if known == pattern => *is_small,
        _ => {
            let is_small = is_small(pattern);
            *last = Some((pattern.to_owned(), is_small));
            is_small
        }
    })
}

/// The sizes of large patterns, as [`compiled_bytes`] gives them, by the names of the patterns. A definition is bound several
/// times, by the dispatcher and by workers, and compiling a large pattern takes a tenth of a second.
#[derive(Debug, Default)]
pub(crate) struct PatternSizes(Mutex<HashMap<String, Option<u64>>>);

/// The most sizes that are kept.
const MAX_SIZES: usize = 1024;

impl PatternSizes {
    fn of(&self, pattern: &str, name: &str) -> Option<u64> {
        if let Some(known) = lock(&self.0).get(name) {
            return *known;
        }
        let size = compiled_bytes(pattern);
        let mut sizes = lock(&self.0);
        if sizes.len() >= MAX_SIZES {
            sizes.clear();
        }
        if size != Some(0) {
            sizes.insert(name.to_owned(), size);
        }
        size
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The patterns in the texts of a definition's expressions.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    sizes: Arc<PatternSizes>,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    /// The names of the patterns.
    seen: HashSet<String>,
    bytes: u64,
}

impl Patterns {
    /// No patterns yet, with the known sizes of others.
    pub(crate) fn new(sizes: &Arc<PatternSizes>) -> Self {
        Self { sizes: Arc::clone(sizes), counted: Mutex::default() }
    }

    /// Counts a pattern, once however often it is bound. `insensitive`: it is matched without regard to case.
    ///
    /// # Errors
    /// `InvalidArgument` that names the pattern if it, or all of the definition, take too much memory.
    pub(crate) fn count(&self, pattern: &str, insensitive: bool) -> Result<()> {
        let pattern = if insensitive { format!("(?i){pattern}") } else { pattern.to_owned() };
        let name = content_name(pattern.as_bytes());
        if lock(&self.counted).seen.contains(&name) {
            return Ok(());
        }
        let shown: String = pattern.chars().take(MAX_SHOWN).collect();
        let Some(bytes) = self.sizes.of(&pattern, &name) else {
            return Err(Error::invalid(format!(
                "the regular expression `{shown}` takes more than {} when it is compiled; repeat less in it",
                format_bytes(MAX_BYTES as u64)
            )));
        };
        let mut counted = lock(&self.counted);
        if counted.bytes + bytes > MAX_DEFINITION_BYTES {
            return Err(Error::invalid(format!(
                "with `{shown}` the regular expressions of the pipeline take more than {} when they are compiled; repeat less \
                 in them, or use fewer",
                format_bytes(MAX_DEFINITION_BYTES)
            )));
        }
        counted.bytes += bytes;
        counted.seen.insert(name);
        Ok(())
    }
}

/// The most characters of a pattern in messages.
const MAX_SHOWN: usize = 60;

/// Charges the memory of the patterns of a call for `rows` rows, which are all compiled at once.
///
/// # Errors
/// `ResourceExhausted` if they exceed the budget.
pub(super) fn charge(patterns: &Arg, rows: usize, what: impl Display) -> Result<()> {
    if patterns.is_scalar() {
        // One pattern fits the budget of a chunk. While an expression is bound, a large one does not, and is not compiled.
        return match patterns.text(0) {
            Some(pattern) if !is_small_again(pattern) => budget::hold(MAX_BYTES as u64, &what).map(drop),
            _ => Ok(()),
        };
    }
    let mut seen = HashSet::new();
    let mut patterns = (0..rows).filter_map(|row| patterns.text(row)).filter(|p| seen.insert(*p));
    patterns.try_for_each(|p| budget::reserve(compiled_bytes(p).unwrap_or(MAX_BYTES as u64), &what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_patterns_are_counted_and_small_ones_are_not() {
        for small in ["abc", r"^\w+@[a-z]{2,20}\.com$", "(", "a{2,1}"] {
            assert_eq!(compiled_bytes(small), Some(0), "{small}");
        }
        let large = compiled_bytes("(a{1000}){50}").unwrap();
        assert!((1 << 20..=4 << 20).contains(&large), "{large}");
        assert_eq!(compiled_bytes("(a{1000}){1000}"), None);
    }

    #[test]
    fn the_patterns_of_a_definition_are_bounded_together() {
        let patterns = Patterns::default();
        let pattern = |i: u32| format!("(a{{1000}}){{100}}{i}");
        let each = compiled_bytes(&pattern(0)).unwrap();
        let most = u32::try_from(MAX_DEFINITION_BYTES / each).unwrap();
        for i in 0..most {
            patterns.count(&pattern(i), false).unwrap();
            // The same pattern is bound several times.
            patterns.count(&pattern(0), false).unwrap();
            patterns.count("small", true).unwrap();
        }
        let e = patterns.count(&pattern(most), false).unwrap_err();
        assert!(e.message().starts_with(&format!("with `{}` the regular", pattern(most))), "{e}");
        assert!(e.message().contains("64.00 MiB"), "{e}");
        let e = Patterns::default().count("(a{1000}){1000}", false).unwrap_err();
        assert!(e.message().contains("takes more than 10.00 MiB"), "{e}");
    }
}
