//! Output: results on standard output, errors on standard error.

use std::fmt::Display;
use std::io::{self, Write};

use caju_types::{Error, ErrorKind, Result};

/// Writes a line to standard output and flushes it.
///
/// # Errors
/// `Unavailable` if it cannot be written. A closed pipe (`caju ... | head`) ends the process silently, as in other tools.
pub(crate) fn say(line: impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Error::unavailable(format!("standard output: {e}"))),
    }
}

/// Writes a line to standard error. A failure is ignored, because it cannot be reported.
pub(crate) fn note(line: impl Display) {
    drop(writeln!(io::stderr().lock(), "{line}"));
}

/// Prints an error as one line, and a hint for kinds with a general way out.
pub(crate) fn show_error(error: &Error) {
    show(error.message(), hint(error));
}

/// Prints what is wrong as one line, and a hint as another.
pub(crate) fn show(message: &str, hint: Option<&str>) {
    note(format_args!("error: {}", one_line(message)));
    if let Some(hint) = hint {
        note(format_args!("  hint: {hint}"));
    }
}

/// Replaces line breaks, which quoted text may contain, by spaces.
pub(crate) fn one_line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ")
}

fn hint(error: &Error) -> Option<&'static str> {
    match error.kind() {
        ErrorKind::Internal => {
            Some("this is a defect of caju; please report it with the command and the pipeline file")
        }
        ErrorKind::Unimplemented => Some("this version of caju does not offer it yet; see CHANGELOG.md"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_line() {
        assert_eq!(one_line("a\n  b\r\nc"), "a b c");
    }
}
