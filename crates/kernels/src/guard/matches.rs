//! The time of functions that look for several matches of a regular expression in a text.
//!
//! One search takes a time that is linear in the text, but it may read far beyond the match that it finds. The searches for all
//! matches together may then take the square of the text. `.*[^A-Z]|[A-Z]` in a mebibyte of `A` takes minutes in one call, which
//! nothing can end. So the time of such a call is bounded:
//!
//! 1. The square of the texts is the first bound. Most calls are short by it.
//! 2. The form of most patterns gives a smaller bound ([`searches_per_byte`]).
//! 3. Other calls are measured, and the time is charged between the matches ([`MatchTime`]). Our own functions are measured while
//!    they compute. For a function of DataFusion the matches are looked for once more, before it runs.

use std::borrow::Cow;
use std::fmt::Display;
use std::rc::Rc;

use caju_runtime::{budget, interrupt, thread_cpu_time};
use caju_types::{Error, Result};
use regex::Regex;

use super::automaton::{BYTES_PER_STEP, MAX_STATES, searches_per_byte, states};
use super::size::{Arg, Ints};
use crate::eval::TOO_SLOW;

/// The bound of the steps of a call up to which it is not measured: a sixteenth of those that a chunk may take by default.
const MAX_UNMEASURED_STEPS: u64 = 1 << 26;

/// The states in all searches that read a byte, up to which the time of a pattern counts as linear: it is at most a few
/// microseconds per byte, and some nanoseconds in practice. Addresses, dates and numbers are below.
const MAX_STATES_PER_BYTE: u64 = 2048;

/// The matches between two measurements. Reading the thread's CPU time takes as long as a few short matches.
const MATCHES_PER_MEASUREMENT: usize = 8;

/// The steps for each match, and for each byte of text, that are not charged: those of a linear function. Short matches take
/// less.
const FREE_STEPS_PER_MATCH: u64 = 512;
const FREE_STEPS_PER_BYTE: u64 = 8;

/// Which matches of a regular expression a function looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Matches {
    /// `regexp_count(text, pattern, start, flags)`: all of them.
    Count,
    /// `regexp_instr(text, pattern, start, n, flags, group)`: those up to the n-th one.
    Nth,
    /// `regexp_replace(text, pattern, by, flags)`: all of them with the flag `g`, and the first one without it.
    Replace,
}

impl Matches {
    /// Charges the time of the searches of a call if it may be more than linear.
    ///
    /// # Errors
    /// [`TOO_SLOW`] if the time exceeds the steps of a chunk. `Cancelled` if nobody waits for the call.
    pub(super) fn charge(self, args: &[Arg], rows: usize, what: &dyn Display) -> Result<()> {
        let Some(call) = Call::new(self, args) else { return Ok(()) };
        if are_short(|| call.searches(rows)) { Ok(()) } else { measure(call.searches(rows), what) }
    }
}

/// The arguments of a call.
struct Call<'a> {
    matches: Matches,
    text: &'a Arg,
    pattern: &'a Arg,
    flags: Option<&'a Arg>,
    start: Option<Ints>,
    n: Option<Ints>,
    group: Option<Ints>,
}

impl<'a> Call<'a> {
    fn new(matches: Matches, args: &'a [Arg]) -> Option<Self> {
        let [text, pattern, ..] = args else { return None };
        let ints = |i: usize| args.get(i).and_then(|arg| arg.ints().ok());
        let (start, n, group, flags) = match matches {
            Matches::Count => (ints(2), None, None, args.get(3)),
            Matches::Nth => (ints(2), ints(3), ints(5), args.get(4)),
            Matches::Replace => (None, None, None, args.get(3)),
        };
        Some(Self { matches, text, pattern, flags, start, n, group })
    }

    /// The rows in which more than one match is looked for.
    fn searches(&self, rows: usize) -> impl Iterator<Item = Search<'a>> {
        (0..rows).filter_map(move |row| self.search(row))
    }

    fn search(&self, row: usize) -> Option<Search<'a>> {
        let (text, pattern) = (self.text.text(row)?, self.pattern.text(row)?);
        let flags = match self.flags {
            Some(flags) => flags.text(row)?,
            None => "",
        };
        let int = |of: Option<&Ints>, default: i64| of.map_or(Some(default), |n| n.get(row));
        let start = int(self.start.as_ref(), 1)?;
        let (n, group) = (int(self.n.as_ref(), 1)?, int(self.group.as_ref(), 0)?);
        let most = match self.matches {
            Matches::Count => u64::MAX,
            Matches::Nth if group > 0 => 1,
            Matches::Nth => u64::try_from(n).unwrap_or(0),
            Matches::Replace if flags.contains('g') => u64::MAX,
            Matches::Replace => 1,
        };
        (most > 1 && start > 0).then_some(Search { text, pattern, flags, start, most })
    }
}

/// The searches in the text of a row.
struct Search<'a> {
    text: &'a str,
    pattern: &'a str,
    flags: &'a str,
    /// The number of the character at which the first search begins; that of the first character is 1.
    start: i64,
    /// The most matches that are looked for.
    most: u64,
}

/// The time of a pattern.
#[derive(Clone, Copy)]
struct Cost {
    states: u64,
    searches_per_byte: u64,
}

impl<'a> Search<'a> {
    /// The pattern with its flags, as DataFusion compiles it. `g` is no flag of the `regex` crate.
    fn flagged(&self) -> Cow<'a, str> {
        let flags = self.flags.replace('g', "");
        if flags.is_empty() {
            return Cow::Borrowed(self.pattern);
        }
        Cow::Owned(format!("(?{flags}){}", self.pattern))
    }

    /// The text from the first search on; none if that begins beyond the end.
    fn searched(&self) -> Option<&'a str> {
        let skipped = usize::try_from(self.start - 1).ok()?;
        let mut places = self.text.char_indices().map(|(at, _)| at).chain([self.text.len()]);
        places.nth(skipped).and_then(|at| self.text.get(at..))
    }

    /// The cost if each search reads all of the text.
    fn square(&self) -> Cost {
        let states = states(&self.flagged()).clamp(1, MAX_STATES);
        Cost { states, searches_per_byte: u64::MAX }
    }

    /// The cost by the form of the pattern.
    fn bounded(&self) -> Cost {
        let searches = searches_per_byte(&self.flagged());
        Cost { searches_per_byte: searches.unwrap_or(u64::MAX), ..self.square() }
    }

    /// A bound of the steps; 0 if the time counts as linear.
    fn steps(&self, cost: Cost) -> u64 {
        if cost.searches_per_byte.saturating_mul(cost.states) <= MAX_STATES_PER_BYTE {
            return 0;
        }
        let bytes = self.text.len() as u64;
        let searches = self.most.min(cost.searches_per_byte).min(bytes);
        bytes.saturating_mul(searches).saturating_mul(cost.states) / BYTES_PER_STEP
    }
}

/// Whether the time of these searches is short by one of the bounds.
fn are_short<'a, S: Iterator<Item = Search<'a>>>(searches: impl Fn() -> S) -> bool {
    total(searches(), Search::square) <= MAX_UNMEASURED_STEPS
        || total(searches(), Search::bounded) <= MAX_UNMEASURED_STEPS
}

/// A bound of the steps of all searches.
fn total<'a>(searches: impl Iterator<Item = Search<'a>>, cost: impl Fn(&Search<'a>) -> Cost) -> u64 {
    let mut cost = once_per_pattern(cost);
    searches.fold(0u64, |sum, search| sum.saturating_add(search.steps(cost(&search))))
}

/// A function of patterns and their flags that keeps its last result: most calls have one pattern for all rows.
fn once_per_pattern<'a, T: Clone>(of: impl Fn(&Search<'a>) -> T) -> impl FnMut(&Search<'a>) -> T {
    let mut last: Option<(&'a str, &'a str, T)> = None;
    move |search: &Search<'a>| {
        if let Some((pattern, flags, known)) = &last
            && (*pattern, *flags) == (search.pattern, search.flags)
        {
            return known.clone();
        }
        let value = of(search);
        last = Some((search.pattern, search.flags, value.clone()));
        value
    }
}

/// Looks for the matches as DataFusion's functions do, and charges the time. The searches of DataFusion's function, which follow,
/// take the same time again, and are not charged.
fn measure<'a>(searches: impl Iterator<Item = Search<'a>>, what: &dyn Display) -> Result<()> {
    // DataFusion reports an invalid pattern.
    let mut compiled =
        once_per_pattern(|search: &Search<'a>| Regex::new(&search.flagged()).ok().map(Rc::new));
    let mut time = MatchTime { what, is_measured: true, charged: 0 };
    for search in searches {
        let (Some(regex), Some(text)) = (compiled(&search), search.searched()) else { continue };
        let most = usize::try_from(search.most).unwrap_or(usize::MAX);
        let ends = regex.find_iter(text).map(|found| found.end()).take(most);
        time.charge(ends, text.len())?;
    }
    Ok(())
}

/// The time in which a call looks for matches, beyond that of a linear function.
///
/// The time is the CPU time of the thread in nanoseconds, since the `regex` crate does not report how many bytes a search has
/// read. A search in a part of the text would have a known size. It could find another match than a search in the text, as with
/// `$`, and it would have to be repeated in a larger part. Other work of the machine does not count as CPU time of the thread.
pub(crate) struct MatchTime<'a> {
    /// The call, in errors.
    what: &'a dyn Display,
    /// False if a bound shows that the time is short.
    is_measured: bool,
    /// The sum over all texts.
    charged: u64,
}

impl<'a> MatchTime<'a> {
    /// The time of a call that looks for all matches of one pattern in these texts. The steps of a single search in each text are
    /// charged here, the time of all searches in [`MatchTime::charge`].
    ///
    /// # Errors
    /// `ResourceExhausted` if the steps exceed the budget.
    pub(crate) fn of_all<'t>(
        pattern: &'t str,
        texts: impl Iterator<Item = &'t str> + Clone,
        what: &'a dyn Display,
    ) -> Result<Self> {
        let bytes = texts.clone().fold(0u64, |sum, text| sum.saturating_add(text.len() as u64));
        let steps = bytes.saturating_mul(states(pattern).min(MAX_STATES)) / BYTES_PER_STEP;
        budget::charge_steps(steps, what)?;
        let search = move |text| Search { text, pattern, flags: "", start: 1, most: u64::MAX };
        let is_measured = !are_short(|| texts.clone().map(search));
        Ok(Self { what, is_measured, charged: 0 })
    }

    /// Takes the ends of the matches in a text of `bytes` bytes, and charges the time that this takes.
    ///
    /// # Errors
    /// [`TOO_SLOW`] if the time of all texts exceeds the steps of a chunk. `Cancelled` if nobody waits for the call.
    pub(crate) fn charge(&mut self, mut ends: impl Iterator<Item = usize>, bytes: usize) -> Result<()> {
        if !self.is_measured {
            ends.for_each(drop);
            return Ok(());
        }
        let (mut from, mut is_last, mut began) = (0, false, thread_cpu_time());
        while !is_last {
            interrupt::check()?;
            let some = ends.by_ref().take(MATCHES_PER_MEASUREMENT);
            let (found, end) = some.fold((0usize, from), |(found, _), end| (found + 1, end));
            let now = thread_cpu_time();
            let taken = now.saturating_sub(began).as_nanos();
            is_last = found < MATCHES_PER_MEASUREMENT;
            let to = if is_last { bytes } else { end };
            let read = to.saturating_sub(from) as u64;
            let free = (found as u64 * FREE_STEPS_PER_MATCH)
                .saturating_add(read.saturating_mul(FREE_STEPS_PER_BYTE));
            let steps = u64::try_from(taken).unwrap_or(u64::MAX).saturating_sub(free);
            self.charged = self.charged.saturating_add(steps);
            // Measured time is compared apart from counted steps: which rows are bad by these must not depend on the machine.
            budget::check_steps(self.charged, self.what)
                .map_err(|e| Error::new(TOO_SLOW, e.message().to_owned()))?;
            (from, began) = (to, now);
        }
        Ok(())
    }
}
