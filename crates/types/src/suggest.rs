//! "Did you mean": the known name nearest to a misspelt one.

/// The most bytes of a word that may be a misspelling. It bounds the work for words from outside.
const MAX_WORD_BYTES: usize = 64;
/// The most candidates that are compared. It bounds the work for candidates from outside.
const MAX_CANDIDATES: usize = 1000;
/// The most characters of a text from outside that a message repeats.
const SHORTENED_CHARS: usize = 80;

/// The beginning of a text from outside, for messages: enough for a person to recognise it.
///
/// ```
/// assert_eq!(caju_types::shortened("run-1"), "run-1");
/// assert_eq!(caju_types::shortened(&"x".repeat(1000)).len(), 83);
/// ```
pub fn shortened(text: &str) -> std::borrow::Cow<'_, str> {
    match text.char_indices().nth(SHORTENED_CHARS) {
        None => text.into(),
        Some((end, _)) => format!("{}...", &text[..end]).into(),
    }
}

/// The candidate nearest to `word`, as `; did you mean `x`?`, or an empty string if none is near.
///
/// ```
/// assert_eq!(caju_types::did_you_mean("suffle", ["shuffle", "batch"]), "; did you mean `shuffle`?");
/// assert_eq!(caju_types::did_you_mean("zzz", ["shuffle", "batch"]), "");
/// ```
pub fn did_you_mean<S: AsRef<str>>(word: &str, known: impl IntoIterator<Item = S>) -> String {
    if word.len() > MAX_WORD_BYTES {
        return String::new();
    }
    let lower = word.to_lowercase();
    let best = known
        .into_iter()
        .take(MAX_CANDIDATES)
        .filter(|k| k.as_ref().len() <= 2 * MAX_WORD_BYTES)
        .map(|k| (strsim::damerau_levenshtein(&lower, &k.as_ref().to_lowercase()), k))
        .min_by_key(|(d, _)| *d);
    match best {
        Some((d, k)) if d <= 1 + word.len() / 4 => format!("; did you mean `{}`?", k.as_ref()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_cost_nothing() {
        // Ten million characters against a thousand names took minutes before there was a bound.
        let long = "x".repeat(10_000_000);
        assert_eq!(did_you_mean(&long, std::iter::repeat_n(&long, 1000)), "");
        assert_eq!(did_you_mean("x", std::iter::repeat_n(&long, 1000)), "");
    }
}
