//! "Did you mean": the nearest known name to a misspelt one.

/// The candidate nearest to `word`, as `; did you mean `x`?`, or an empty string if none is near.
///
/// ```
/// assert_eq!(caju_types::did_you_mean("suffle", ["shuffle", "batch"]), "; did you mean `shuffle`?");
/// assert_eq!(caju_types::did_you_mean("zzz", ["shuffle", "batch"]), "");
/// ```
pub fn did_you_mean<S: AsRef<str>>(word: &str, known: impl IntoIterator<Item = S>) -> String {
    let lower = word.to_lowercase();
    let best = known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(&lower, &k.as_ref().to_lowercase()), k))
        .min_by_key(|(d, _)| *d);
    match best {
        Some((d, k)) if d <= 1 + word.len() / 4 => format!("; did you mean `{}`?", k.as_ref()),
        _ => String::new(),
    }
}
