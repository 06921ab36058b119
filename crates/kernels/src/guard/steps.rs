//! The steps of DataFusion's functions whose time is not linear in the bytes that they handle.

use std::fmt::Display;

use caju_runtime::budget;
use caju_types::Result;
use datafusion_common::ScalarValue;
use datafusion_expr::{BinaryExpr, Expr, Operator};

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
    /// A regular expression: the product of the text and the automaton.
    Regexp,
    /// A pattern with `%` and `_`: the product of the text and the pattern.
    Like,
}

/// The rule for a function, by DataFusion's name; none if its time is linear in its arguments and its result.
pub(crate) fn steps(name: &str) -> Option<Steps> {
    Some(match name {
        "levenshtein" | "btrim" | "ltrim" | "rtrim" => Steps::Texts,
        "strpos" => Steps::Needle,
        "array_has_all" | "array_has_any" => Steps::Lists,
        "regexp_count" | "regexp_instr" | "regexp_like" | "regexp_match" | "regexp_replace" => Steps::Regexp,
        _ => return None,
    })
}

/// The bytes that an automaton handles with all its states in one step: most texts take a nanosecond a byte, whatever the size
/// of the automaton.
const BYTES_PER_STEP: u64 = 8;

/// The most states of an automaton: a regular expression that needs more is refused when it is compiled.
const MAX_STATES: u64 = 1 << 18;

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
            Steps::Regexp => {
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

/// About the states of the automaton of a regular expression: its characters, as often as counted repetitions repeat them.
fn states(pattern: &str) -> u64 {
    // For each open group: the states before its last atom, and those of the last atom.
    let (mut open, mut before, mut last) = (Vec::new(), 0u64, 0u64);
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '(' => {
                open.push((before.saturating_add(last), 1));
                (before, last) = (0, 0);
            }
            ')' => {
                let inner = before.saturating_add(last).max(1);
                (before, last) = open.pop().map_or((0, inner), |(outer, _): (u64, u64)| (outer, inner));
            }
            '{' => {
                let count: String = chars.by_ref().take_while(|c| *c != '}').collect();
                let most = count.split(',').filter_map(|n| n.trim().parse::<u64>().ok()).max();
                last = last.saturating_mul(most.unwrap_or(1).max(1));
            }
            '*' | '+' | '?' => {}
            _ => {
                before = before.saturating_add(last);
                last = 1;
                match c {
                    '\\' => {
                        // `\p{Greek}` is one atom.
                        let class = chars.next().is_some_and(|c| matches!(c, 'p' | 'P' | 'x' | 'u'));
                        if class && chars.peek() == Some(&'{') {
                            chars.by_ref().take_while(|c| *c != '}').for_each(drop);
                        }
                    }
                    '[' => {
                        let mut escaped = false;
                        let mut first = true;
                        for c in chars.by_ref() {
                            if c == ']' && !escaped && !first {
                                break;
                            }
                            first = first && c == '^';
                            escaped = c == '\\' && !escaped;
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    open.into_iter().fold(before.saturating_add(last), |sum, (outer, _)| sum.saturating_add(outer))
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

#[cfg(test)]
mod tests {
    use super::states;

    #[test]
    fn counted_repetitions_multiply_the_states_of_what_they_repeat() {
        for (pattern, expected) in [
            ("abc", 3),
            ("a.c*", 3),
            ("a{10}b", 11),
            ("(ab){10}", 20),
            ("(a{10}b){2,100}c", 1101),
            ("((a{10}){10}){10}", 1000),
            ("[0-9a-f]{8}-[0-9a-f]{4}", 13),
            (r"\p{Greek}{3}\{", 4),
            ("[]a]{2}", 2),
            ("(a|b)*a(a|b){500}", 3 + 1 + 1500),
            ("a{", 1),
            ("(((", 0),
            (")", 1),
        ] {
            assert_eq!(states(pattern), expected, "{pattern}");
        }
        assert_eq!(states(&"(a{1000}){1000}".repeat(3)), 3_000_000);
    }
}
