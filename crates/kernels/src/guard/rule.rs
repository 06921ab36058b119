//! Bounds of the sizes of DataFusion's results.

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, IntervalMonthDayNanoType, IntervalUnit, TimeUnit};
use datafusion_common::{DataFusionError, plan_err};

use super::size::{Arg, fixed_width};

/// The bound of a function's result by its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// This many times the size of all arguments together.
    Sum(u64),
    /// All arguments together, with the first one between every two others.
    Joined,
    /// The first argument, repeated as often as the second one says.
    Repeat,
    /// The first argument, filled up to a number of characters.
    Pad,
    /// Text with every occurrence of the second argument replaced by the third.
    Replace,
    /// Text with matches of a regular expression replaced.
    RegexpReplace,
    /// A list of numbers or times from one to another.
    Range,
    /// A list of a given length.
    Resize,
    /// A list with values replaced by the third argument.
    ArrayReplace,
    /// A list as text.
    ArrayToString,
    /// A list of structs of several lists, as long as the longest of them.
    Zip,
    /// A time as text.
    Format,
}

/// The rule for a function whose result can be much larger than its arguments, by DataFusion's name. The results of all other
/// functions are at most a few times as large as one argument. A test lists those, so that each new function of DataFusion has
/// to be added here or there.
pub(crate) fn rule(name: &str) -> Option<Rule> {
    Some(match name {
        "concat" | "make_array" | "struct" | "named_struct" | "map" | "overlay" | "array_append"
        | "array_prepend" | "array_concat" | "array_union" | "greatest" | "least" => Rule::Sum(1),
        "encode" => Rule::Sum(2),
        "translate" => Rule::Sum(4),
        "string_to_array" => Rule::Sum(8),
        "concat_ws" => Rule::Joined,
        "repeat" | "array_repeat" => Rule::Repeat,
        "lpad" | "rpad" => Rule::Pad,
        "replace" => Rule::Replace,
        "regexp_replace" => Rule::RegexpReplace,
        "range" | "generate_series" => Rule::Range,
        "array_resize" => Rule::Resize,
        "array_replace" | "array_replace_n" | "array_replace_all" => Rule::ArrayReplace,
        "array_to_string" => Rule::ArrayToString,
        "arrays_zip" => Rule::Zip,
        "to_char" => Rule::Format,
        _ => return None,
    })
}

/// The most characters that one character of a time format can become.
const FORMAT_FACTOR: u64 = 32;
/// The most bytes of a character.
const CHAR_BYTES: u64 = 4;
/// The bytes of a number or a time in a list.
const NUMBER_BYTES: u64 = 16;

impl Rule {
    /// An upper bound of the bytes of the result for `rows` rows.
    pub(super) fn bytes(self, args: &[Arg], rows: usize) -> Result<u64, DataFusionError> {
        let Some(first) = args.first() else { return Ok(0) };
        let all = || args.iter().fold(0u64, |a, arg| a.saturating_add(arg.total(rows)));
        let each = |of: &dyn Fn(usize) -> u64| (0..rows).fold(0u64, |a, row| a.saturating_add(of(row)));
        Ok(match (self, args) {
            (Rule::Sum(factor), _) => all().saturating_mul(factor),
            (Rule::Joined, _) => {
                all().saturating_add(first.total(rows).saturating_mul(args.len().saturating_sub(2) as u64))
            }
            (Rule::Repeat, [value, count]) => {
                // Repeated text is one value. A list of repeated values has many.
                let once = if value.is_text() { value.overhead() } else { 0 };
                let (one, count) = (count.is_scalar(), count.ints()?);
                let content = |bytes: u64, values: u64| bytes.saturating_sub(once.saturating_mul(values));
                let repeated = if one {
                    content(value.total(rows), rows as u64).saturating_mul(count.count(0))
                } else {
                    each(&|row| content(value.bytes(row), 1).saturating_mul(count.count(row)))
                };
                repeated.saturating_add(once.saturating_mul(rows as u64))
            }
            (Rule::Pad, [text, length, fill @ ..]) => {
                let width = if fill.first().is_none_or(Arg::is_ascii) { 1 } else { CHAR_BYTES };
                let length = length.ints()?;
                let padding = each(&|row| length.count(row).saturating_mul(width));
                text.total(rows).saturating_add(padding)
            }
            (Rule::Replace, [text, from, to]) => {
                let shortest =
                    if from.is_scalar() { from.text(0).map_or(1, str::len).max(1) as u64 } else { 1 };
                let matches = (text.total(rows) / shortest).saturating_add(rows as u64);
                text.total(rows).saturating_add(matches.saturating_mul(to.longest()))
            }
            (Rule::RegexpReplace, [text, _, by, flags @ ..]) => {
                let global = flags.first().is_some_and(|f| (0..f.array.len()).any(|i| has_g(f, i)));
                // Each group repeats at most the match, and matches do not overlap.
                let groups = (0..by.array.len()).map(|i| groups(by, i)).max().unwrap_or(0);
                let matches = if global { text.total(rows).saturating_add(rows as u64) } else { rows as u64 };
                let kept = text.total(rows).saturating_mul(groups.saturating_add(1));
                kept.saturating_add(matches.saturating_mul(by.longest()))
            }
            (Rule::Range, _) => range(args, rows)?,
            (Rule::Resize, [list, length, fill @ ..]) => {
                let item = item_width(list);
                let length = length.ints()?;
                // DataFusion takes such a length for an internal error.
                if let Some(negative) = (0..rows).filter_map(|row| length.get(row)).find(|n| *n < 0) {
                    return Err(DataFusionError::Execution(format!(
                        "array_resize: the length {negative} is negative"
                    )));
                }
                each(&|row| {
                    let filling = fill.first().map_or(0, |f| f.bytes(row)).saturating_add(item);
                    list.bytes(row).saturating_add(filling.saturating_mul(length.count(row)))
                })
            }
            (Rule::ArrayReplace, [list, _, to, ..]) => {
                each(&|row| list.bytes(row).saturating_add(to.bytes(row).saturating_mul(list.list_len(row))))
            }
            (Rule::ArrayToString, [list, rest @ ..]) => each(&|row| {
                let between = rest.iter().fold(list.number_text(), |a, arg| a.saturating_add(arg.bytes(row)));
                list.bytes(row).saturating_add(list.leaves(row).saturating_mul(between))
            }),
            (Rule::Zip, lists) => {
                let item = lists.iter().fold(0u64, |a, l| a.saturating_add(item_width(l)));
                each(&|row| {
                    let longest = lists.iter().map(|l| l.list_len(row)).max().unwrap_or(0);
                    let values = lists.iter().fold(0u64, |a, l| a.saturating_add(l.bytes(row)));
                    values.saturating_add(longest.saturating_mul(item))
                })
            }
            (Rule::Format, [_, format, ..]) => format.total(rows).saturating_mul(FORMAT_FACTOR),
            // A wrong number of arguments: the function reports it itself.
            _ => all(),
        })
    }

    /// A tighter bound by counting the replaced matches, for results that [`Rule::bytes`] finds too large; none for other
    /// rules.
    pub(super) fn counted(self, args: &[Arg], rows: usize) -> Option<u64> {
        let (Rule::Replace, [text, from, to]) = (self, args) else { return None };
        let grown = |row| {
            let matches = match (text.text(row), from.text(row)) {
                (Some(t), Some(f)) => t.matches(f).count() as u64,
                _ => 0,
            };
            text.bytes(row)
                .saturating_add(matches.saturating_mul(to.bytes(row).saturating_sub(to.overhead())))
        };
        Some((0..rows).fold(0u64, |a, row| a.saturating_add(grown(row))))
    }
}

fn item_width(list: &Arg) -> u64 {
    match list.array.data_type() {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => {
            fixed_width(f.data_type()).max(NUMBER_BYTES)
        }
        _ => NUMBER_BYTES,
    }
}

fn has_g(flags: &Arg, row: usize) -> bool {
    flags.text(row).is_some_and(|f| f.contains('g'))
}

fn groups(by: &Arg, row: usize) -> u64 {
    by.text(row).map_or(0, |b| b.matches(['\\', '$']).count() as u64)
}

const DAY_NS: i128 = 86_400_000_000_000;

fn range(args: &[Arg], rows: usize) -> Result<u64, DataFusionError> {
    let stepped: Box<dyn Fn(usize) -> Option<i128>> = match args.get(2) {
        None => Box::new(|_| Some(1)),
        Some(step) if step.array.data_type() == &DataType::Interval(IntervalUnit::MonthDayNano) => {
            let steps = intervals(step, rows)?;
            Box::new(move |row| steps.get(if steps.len() == 1 { 0 } else { row }).copied().flatten())
        }
        Some(step) => {
            let step = step.ints()?;
            Box::new(move |row| step.get(row).map(i128::from))
        }
    };
    // Days and units of timestamps as nanoseconds, as steps are.
    let unit: i128 = match args[0].array.data_type() {
        DataType::Date32 => DAY_NS,
        DataType::Date64 | DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000_000,
        DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1_000,
        _ => 1,
    };
    let ends = args.iter().take(2).map(|a| numbers(a)?.ints()).collect::<Result<Vec<_>, _>>()?;
    let mut bytes = 0u64;
    for row in 0..rows {
        let (start, stop) = match &ends[..] {
            [stop] => (Some(0), stop.get(row)),
            [start, stop, ..] => (start.get(row), stop.get(row)),
            [] => (None, None),
        };
        let (Some(start), Some(stop), Some(step)) = (start, stop, stepped(row)) else { continue };
        let distance = (i128::from(stop) - i128::from(start)) * unit;
        if step == 0 || (distance < 0) != (step < 0) {
            continue;
        }
        let values = u64::try_from(distance / step).unwrap_or(u64::MAX).saturating_add(1);
        bytes = bytes.saturating_add(values.saturating_mul(NUMBER_BYTES));
    }
    Ok(bytes)
}

/// Dates and timestamps as the integers that they are.
fn numbers(arg: &Arg) -> Result<Arg, DataFusionError> {
    match arg.array.data_type() {
        DataType::Date32 => arg.with(cast(&cast(&arg.array, &DataType::Int32)?, &DataType::Int64)?),
        _ => arg.with(cast(&arg.array, &DataType::Int64)?),
    }
}

/// The shortest duration of each step, in nanoseconds and with its sign.
fn intervals(step: &Arg, rows: usize) -> Result<Vec<Option<i128>>, DataFusionError> {
    let array = step.array.as_primitive::<IntervalMonthDayNanoType>();
    (0..rows.min(array.len()))
        .map(|i| {
            if array.is_null(i) {
                return Ok(None);
            }
            let v = array.value(i);
            let parts = [
                i128::from(v.months) * 28 * DAY_NS,
                // A day may have 23 hours.
                i128::from(v.days) * 23 * (DAY_NS / 24),
                i128::from(v.nanoseconds),
            ];
            if parts.iter().any(|p| *p < 0) && parts.iter().any(|p| *p > 0) {
                return plan_err!("a step that goes forwards and backwards has no bound; give months, days and times one sign");
            }
            Ok(Some(parts.iter().sum()))
        })
        .collect()
}
