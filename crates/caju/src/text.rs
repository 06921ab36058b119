//! Text for people: wrapped lines and tables.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The width of text, in characters.
pub(crate) const WIDTH: usize = 100;

/// Wraps text at [`WIDTH`]. All lines but the first are indented.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out
}

/// A table with right-aligned columns, two spaces before each.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    aligned(rows, N)
}

/// The first line of a text, marked if there are more.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    match text.trim_end().split_once(['\n', '\r']) {
        Some((first, _)) => Cow::Owned(format!("{} [...]", first.trim_end())),
        None => Cow::Borrowed(text.trim_end()),
    }
}

/// A table with left-aligned columns from column `left` on, for words instead of numbers.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]], left: usize) -> String {
    let rows: Vec<[Cow<'_, str>; N]> =
        rows.iter().map(|row| std::array::from_fn(|i| one_line(&row[i]))).collect();
    let widths: [usize; N] =
        std::array::from_fn(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for row in &rows {
        for (i, (cell, width)) in row.iter().zip(widths).enumerate() {
            let _ = match i < left {
                true => write!(out, "  {cell:>width$}"),
                false => write!(out, "  {cell:<width$}"),
            };
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}
