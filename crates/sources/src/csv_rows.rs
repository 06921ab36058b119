//! Where the rows of comma-separated values end.
//!
//! The rules are those of the parser (`csv-core`): what ends a row here ends it there. A quote opens a value only as its first
//! byte, so `5" pipe` has no open value. A line feed, a carriage return, or both end a row outside of such values.

/// Whether a quoted value is open behind `text`, which begins a row, or goes on in a value if one is `open` before it.
pub(crate) fn is_open(text: &[u8], delimiter: u8, mut open: bool) -> bool {
    // Most lines have no quote, and this search is vectorised.
    if !text.contains(&b'"') {
        return open;
    }
    let mut at = 0;
    while let Some(n) = text.get(at..).and_then(|rest| rest.iter().position(|b| *b == b'"')) {
        let quote = at + n;
        at = quote + 1;
        if !open {
            let before = quote.checked_sub(1).map(|i| text[i]);
            open = before.is_none_or(|b| b == delimiter || is_end(b));
        } else if text.get(at) == Some(&b'"') {
            // Two quotes are one character of the value.
            at += 1;
        } else {
            open = false;
        }
    }
    open
}

/// The rows of some text, each with its end.
pub(crate) fn rows(text: &[u8], delimiter: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (row, after) = rest.split_at(row_len(rest, delimiter));
        rest = after;
        (!row.is_empty()).then_some(row)
    })
}

fn row_len(text: &[u8], delimiter: u8) -> usize {
    let (mut open, mut at) = (false, 0);
    while let Some(n) = text.get(at..).and_then(|rest| rest.iter().position(|b| is_end(*b))) {
        let end = at + n;
        open = is_open(&text[at..end], delimiter, open);
        at = end + 1;
        if !open {
            return if text[end] == b'\r' && text.get(at) == Some(&b'\n') { at + 1 } else { at };
        }
    }
    text.len()
}

fn is_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

#[cfg(test)]
mod tests {
    use csv_core::{ReadRecordResult, Reader};
    use proptest::prelude::*;

    use super::*;

    /// The number of rows that the parser finds, without blank ones.
    fn parsed(text: &[u8]) -> usize {
        let (mut reader, mut rest, mut rows) = (Reader::new(), text, 0);
        let (mut out, mut ends) = ([0; 1024], [0; 256]);
        loop {
            let (result, read, _, _) = reader.read_record(rest, &mut out, &mut ends);
            rest = &rest[read..];
            match result {
                ReadRecordResult::Record => rows += 1,
                ReadRecordResult::End => return rows,
                _ => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn rows_are_those_of_the_parser(text in "[ab,\"\r\n]{0,40}") {
            let found: Vec<&[u8]> = rows(text.as_bytes(), b',').collect();
            prop_assert_eq!(found.concat(), text.as_bytes());
            let with_values = found.iter().filter(|row| row.iter().any(|b| !is_end(*b)));
            prop_assert_eq!(with_values.count(), parsed(text.as_bytes()));
        }
    }

    #[test]
    fn a_quote_within_a_value_opens_nothing() {
        for (text, open) in [
            ("5\" pipe", false),
            ("1,5\" pipe,\"", true),
            ("\"a\"b\"", false),
            ("\"a\"\"", true),
            ("\"a\"\"\"", false),
            ("x,\"\"", false),
        ] {
            assert_eq!(is_open(text.as_bytes(), b',', false), open, "{text}");
        }
        assert!(is_open(b"a", b',', true) && !is_open(b"a\",5\" pipe", b',', true));
    }
}
