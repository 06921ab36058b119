//! The steps of DataFusion's functions whose time is not linear in the bytes that they handle.

use std::fmt::Display;

use caju_runtime::budget;
use caju_types::Result;
use datafusion_common::ScalarValue;
use datafusion_expr::{BinaryExpr, Expr, Operator};

use super::automaton::{BYTES_PER_STEP, MAX_STATES, states};
use super::matches::Matches;
use super::patterns;
use super::size::Arg;

/// How many steps a call takes by its arguments. A step takes about a nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Steps {
    /// The product of the lengths of two texts.
    Texts,
    /// A text is looked for in another. With one text for all rows that is quick.
    Needle,
    /// Each value of one list is compared with each value of another.
    Lists,
    /// A regular expression that is searched once: the product of the text and the automaton.
    Regexp,
    /// A regular expression of which several matches are looked for: as [`Steps::Regexp`], and the time of what the searches read
    /// again.
    Matches(Matches),
    /// A pattern with `%` and `_`: the product of the text and the pattern.
    Like,
}

/// The rule for a function, by DataFusion's name; none if its time is linear in its arguments and its result.
pub(crate) fn steps(name: &str) -> Option<Steps> {
    Some(match name {
        "levenshtein" | "btrim" | "ltrim" | "rtrim" => Steps::Texts,
        "strpos" => Steps::Needle,
        "array_has_all" | "array_has_any" => Steps::Lists,
        "regexp_like" | "regexp_match" => Steps::Regexp,
        "regexp_count" => Steps::Matches(Matches::Count),
        "regexp_instr" => Steps::Matches(Matches::Nth),
        "regexp_replace" => Steps::Matches(Matches::Replace),
        _ => return None,
    })
}

/// The steps that compiling one state takes.
const COMPILE_STEPS: u64 = 64;

impl Steps {
    /// Charges the steps for `rows` rows, and the memory of compiled patterns.
    ///
    /// # Errors
    /// `ResourceExhausted` if they exceed the budget.
    pub(super) fn charge(self, args: &[Arg], rows: usize, what: impl Display) -> Result<()> {
        budget::charge_steps(self.count(args, rows), &what)?;
        match (self, args) {
            (Steps::Regexp, [_, pattern, ..]) => patterns::charge(pattern, rows, what),
            (Steps::Matches(matches), [_, pattern, ..]) => {
                patterns::charge(pattern, rows, &what)?;
                matches.charge(args, rows, &what)
            }
            _ => Ok(()),
        }
    }

    /// An upper bound of the steps for `rows` rows.
    fn count(self, args: &[Arg], rows: usize) -> u64 {
        let [a, b, ..] = args else { return 0 };
        let each = |of: &dyn Fn(usize) -> u64| (0..rows).fold(0u64, |sum, row| sum.saturating_add(of(row)));
        let product = |row| a.text_bytes(row).saturating_mul(b.text_bytes(row));
        match self {
            Steps::Texts => each(&product),
            Steps::Needle if b.is_scalar() => 0,
            Steps::Needle => each(&|row| product(row) / BYTES_PER_STEP),
            Steps::Like => {
                each(&|row| if is_costly(b.text(row)) { product(row) / BYTES_PER_STEP } else { 0 })
            }
            Steps::Lists => each(&|row| {
                let left = a.list_len(row).saturating_mul(b.bytes(row));
                let right = b.list_len(row).saturating_mul(a.bytes(row));
                left.min(right) / BYTES_PER_STEP
            }),
            Steps::Regexp | Steps::Matches(_) => {
                let of_pattern = |row| b.text(row).map_or(0, |p| states(p).min(MAX_STATES));
                let once = b.is_scalar().then(|| of_pattern(0));
                let matched = each(&|row| {
                    let states = once.unwrap_or_else(|| of_pattern(row));
                    let compiled = if once.is_none() { states.saturating_mul(COMPILE_STEPS) } else { 0 };
                    (a.text_bytes(row).saturating_mul(states) / BYTES_PER_STEP).saturating_add(compiled)
                });
                matched.saturating_add(once.unwrap_or(0).saturating_mul(COMPILE_STEPS))
            }
        }
    }
}

/// Whether the automaton of a `like` pattern may have more states than the pattern has characters.
fn is_costly(pattern: Option<&str>) -> bool {
    pattern.is_some_and(|p| p.contains('%') && p.contains('_'))
}

/// The text and the pattern of an operator that matches one by the other, if that may take more than linear time.
pub(super) fn matched(expr: &mut Expr) -> Option<(&mut Box<Expr>, Expr, Steps)> {
    match expr {
        Expr::Like(like) => {
            let cheap = constant_text(&like.pattern).is_some_and(|p| !is_costly(Some(p)));
            (!cheap).then(|| (&mut like.expr, (*like.pattern).clone(), Steps::Like))
        }
        Expr::SimilarTo(like) => Some((&mut like.expr, (*like.pattern).clone(), Steps::Regexp)),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let steps = match op {
                Operator::RegexMatch
                | Operator::RegexIMatch
                | Operator::RegexNotMatch
                | Operator::RegexNotIMatch => Steps::Regexp,
                Operator::LikeMatch
                | Operator::ILikeMatch
                | Operator::NotLikeMatch
                | Operator::NotILikeMatch => Steps::Like,
                _ => return None,
            };
            Some((left, (**right).clone(), steps))
        }
        _ => None,
    }
}

fn constant_text(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(ScalarValue::Utf8(v) | ScalarValue::LargeUtf8(v) | ScalarValue::Utf8View(v), _) => {
            v.as_deref()
        }
        _ => None,
    }
}
