//! A bound of the time of the searches of a regular expression, by its text.

use regex_syntax::hir::{Hir, HirKind, Literal};

/// The bytes that an automaton handles with all its states in one step: most texts take a nanosecond a byte, whatever the size
/// of the automaton.
pub(super) const BYTES_PER_STEP: u64 = 8;

/// The most states of an automaton: a regular expression that needs more is refused when it is compiled.
pub(super) const MAX_STATES: u64 = 1 << 18;

/// About the states of the automaton of a regular expression: its characters, as often as counted repetitions repeat them.
pub(super) fn states(pattern: &str) -> u64 {
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

/// A bound on the searches that read the same byte of a text while all matches of a regular expression are looked for. None if no
/// bound is known, as for `.*[^A-Z]|[A-Z]`: each of its searches reads the remainder of the text `AAAA`.
///
/// The bound holds for a sequence of bounded parts and loops, where each loop repeats a single character: `<[^>]+>` has two parts
/// and a loop. A search reads beyond its match only while attempts of a higher priority are alive. It ends when all of these have
/// failed. An attempt that lives for long spends its time in loops. A later match in the bytes that were read passes the same
/// loops in the same order, and it begins behind the beginning of the attempt. So there is a loop that the later match leaves
/// while the attempt is in it. From there on, the attempt could go the way of the match, and it would not have failed. The
/// exceptions are matches that overtake the attempt within a bounded part, and matches that end within the last characters
/// that were read. The characters of the bounded parts bound their number. Two searches may end at the same character, one of
/// them with an empty match.
pub(super) fn searches_per_byte(pattern: &str) -> Option<u64> {
    let hir = regex_syntax::parse(pattern).ok()?;
    let mut sequence = Sequence::default();
    if !sequence.add(&hir) {
        return None;
    }
    let overtaking = sequence.chars.saturating_add(sequence.loops);
    Some(overtaking.saturating_add(sequence.chars).saturating_mul(2).saturating_add(5))
}

/// A sequence of bounded parts and of loops over single characters.
#[derive(Default)]
struct Sequence {
    /// The most characters of all bounded parts.
    chars: u64,
    loops: u64,
}

impl Sequence {
    /// Adds a part. False if it is none: it has a loop within a choice or a repetition.
    fn add(&mut self, part: &Hir) -> bool {
        if let Some(chars) = max_chars(part) {
            self.chars = self.chars.saturating_add(chars);
            return true;
        }
        match part.kind() {
            HirKind::Capture(group) => self.add(&group.sub),
            HirKind::Concat(parts) => parts.iter().all(|part| self.add(part)),
            HirKind::Repetition(of) if is_char(&of.sub) => {
                self.chars = self.chars.saturating_add(u64::from(of.min));
                self.loops = self.loops.saturating_add(1);
                true
            }
            _ => false,
        }
    }
}

/// Whether an expression matches exactly one character.
fn is_char(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Capture(group) => is_char(&group.sub),
        HirKind::Class(_) => true,
        HirKind::Literal(_) => max_chars(hir) == Some(1),
        _ => false,
    }
}

/// The most characters that an expression matches; none if there is no bound.
fn max_chars(hir: &Hir) -> Option<u64> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Some(0),
        HirKind::Literal(Literal(bytes)) => {
            let chars = std::str::from_utf8(bytes).map_or(bytes.len(), |text| text.chars().count());
            Some(chars as u64)
        }
        HirKind::Class(_) => Some(1),
        HirKind::Repetition(of) => {
            let most = of.max?;
            Some(max_chars(&of.sub)?.saturating_mul(u64::from(most)))
        }
        HirKind::Capture(group) => max_chars(&group.sub),
        HirKind::Concat(parts) => {
            parts.iter().try_fold(0u64, |sum, part| Some(sum.saturating_add(max_chars(part)?)))
        }
        HirKind::Alternation(parts) => {
            parts.iter().try_fold(0u64, |most, part| Some(most.max(max_chars(part)?)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{searches_per_byte, states};

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

    #[test]
    fn sequences_of_bounded_parts_and_loops_over_characters_are_linear() {
        for pattern in [
            r"\s+",
            "[^a-z]+",
            "<[^>]+>",
            r"(\w+)@(\w+)\.com",
            r"\d{3}-\d+",
            r"\d{4}-\d{2}-\d{2}",
            "(?:ab|c){2}x*?",
            "(a|b)+",
            "(ö)*",
            "a{3,}(b*)(c?)",
            "^a*b$",
            "",
            // The parser takes the common prefix out of the alternation.
            "a.*y|a.*z",
        ] {
            for flags in ["", "(?i)", "(?m)", "(?s)", "(?U)", "(?ims)"] {
                let pattern = format!("{flags}{pattern}");
                assert!(searches_per_byte(&pattern).is_some_and(|n| n < 200), "{pattern}");
            }
        }
    }

    #[test]
    fn loops_within_choices_and_repetitions_are_not_proven() {
        for pattern in [
            ".*[^A-Z]|[A-Z]",
            "(?:[^a]*b)*",
            "(x*y)?",
            "(?:a.*z|a)",
            r"(\s+|-)",
            r"^\s+|\s+$",
            r"(?:\d{3},)+",
            "(?:a*){2}",
            "(ab)*",
            "(a*)*",
            "a(b(c*d)?)",
            // No regular expression.
            "(",
        ] {
            for flags in ["", "(?i)", "(?m)", "(?s)", "(?U)", "(?ims)"] {
                let pattern = format!("{flags}{pattern}");
                assert_eq!(searches_per_byte(&pattern), None, "{pattern}");
            }
        }
    }

    #[test]
    fn bounded_parts_are_read_again_as_often_as_they_are_long() {
        assert_eq!(searches_per_byte("ab|[cd]{3}|ö"), Some(4 * 3 + 5));
        assert_eq!(searches_per_byte("(?:a{100}b)?c+"), Some(4 * 102 + 2 + 5));
        assert!(searches_per_byte("(?:a{1000}b|a)").is_some_and(|n| n > 4000));
    }
}
