//! Text that is not JSON: which field was being read when it went wrong.
//!
//! The parser knows a line and a column, a person knows fields. `NaN` and `Infinity`, which many programs
//! write although JSON has no such numbers, are the common case.

use std::fmt::Write as _;

use caju_types::Error;

/// The parser's error as one line that names the field.
pub(super) fn error(text: &str, e: &serde_json::Error) -> Error {
    let offset = offset_of(text, e.line(), e.column());
    let path = path_at(&text.as_bytes()[..offset]);
    let token = token_at(text.as_bytes(), offset);
    if matches!(
        token.trim_start_matches(['-', '+']).to_ascii_lowercase().as_str(),
        "nan" | "inf" | "infinity"
    ) {
        return Error::invalid(format!("{path}: expected a number, found {token}, which is not JSON"));
    }
    Error::invalid(format!("{path}: not valid JSON: {e}"))
}

/// The byte just past the one that the parser complained about.
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let starts: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (starts + column).min(text.len())
}

enum Frame<'a> {
    Object { key: Option<&'a [u8]>, in_value: bool },
    List { index: usize },
}

/// The path of the value that the text breaks off in, by brackets and strings alone.
fn path_at(text: &[u8]) -> String {
    let mut frames: Vec<Frame> = Vec::new();
    let mut i = 0;
    while i < text.len() {
        match text[i] {
            b'"' => {
                let end = string_end(text, i + 1);
                if let Some(Frame::Object { key, in_value: false }) = frames.last_mut() {
                    *key = Some(&text[i + 1..end]);
                }
                i = end;
            }
            b'{' => frames.push(Frame::Object { key: None, in_value: false }),
            b'[' => frames.push(Frame::List { index: 0 }),
            b'}' | b']' => drop(frames.pop()),
            b':' => {
                if let Some(Frame::Object { in_value, .. }) = frames.last_mut() {
                    *in_value = true;
                }
            }
            b',' => match frames.last_mut() {
                Some(Frame::Object { key, in_value }) => (*key, *in_value) = (None, false),
                Some(Frame::List { index }) => *index += 1,
                None => {}
            },
            _ => {}
        }
        i += 1;
    }
    join(&frames)
}

fn string_end(text: &[u8], mut i: usize) -> usize {
    while i < text.len() && text[i] != b'"' {
        i += if text[i] == b'\\' { 2 } else { 1 };
    }
    i.min(text.len())
}

fn join(frames: &[Frame]) -> String {
    let mut out = String::new();
    // A field is some levels deep; damage can be any number of brackets deep.
    for frame in frames.iter().take(8) {
        match frame {
            Frame::Object { key: Some(key), .. } => {
                let dot = if out.is_empty() { "" } else { "." };
                let key = String::from_utf8_lossy(&key[..key.len().min(60)]);
                let _ = write!(out, "{dot}{}", key.escape_debug());
            }
            Frame::Object { key: None, .. } => {}
            Frame::List { index } => {
                let _ = write!(out, "[{index}]");
            }
        }
    }
    if out.is_empty() { "profile".into() } else { out }
}

/// The word around the offset, as far as it could be a number or a name.
fn token_at(text: &[u8], offset: usize) -> String {
    let word = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'.' | b'_');
    let start = offset - text[..offset].iter().rev().take_while(|b| word(b)).take(40).count();
    let length = text[start..].iter().take_while(|b| word(b)).take(40).count();
    String::from_utf8_lossy(&text[start..start + length]).into_owned()
}

#[cfg(test)]
mod tests {
    use crate::Profile;

    fn message(text: &str) -> String {
        Profile::from_json(text).unwrap_err().to_string()
    }

    #[test]
    fn broken_text_names_the_field() {
        let nan = r#"{"schema": "caju.profile/v1", "stages": [{"name": "a]{"}, {"cpu_s_per_row": NaN}]}"#;
        assert_eq!(message(nan), "stages[1].cpu_s_per_row: expected a number, found NaN, which is not JSON");
        let inf = "{\n \"cluster\": {\n  \"cores_per_worker\": -Infinity}}";
        assert_eq!(
            message(inf),
            "cluster.cores_per_worker: expected a number, found -Infinity, which is not JSON"
        );
        let cut = r#"{"hints": [{"name": "x", "encodings": [{"format": "#;
        assert!(
            message(cut).starts_with("hints[0].encodings[0].format: not valid JSON: EOF"),
            "{}",
            message(cut)
        );
        assert!(message("").starts_with("profile: not valid JSON"));
        assert!(message(r#"{"source": {"rows": 1e999}}"#).starts_with("source.rows: not valid JSON"));
        assert!(message(&"[".repeat(100_000)).starts_with("[0]"));
        for bad in ["\"\\", "{\"a\\", "\u{e9}", "{\"\u{e9}\": \u{e9}}"] {
            assert!(!message(bad).is_empty());
        }
    }
}
