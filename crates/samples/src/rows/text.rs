//! Documents: words of a made-up language with Zipf frequencies, in lengths that vary by orders of magnitude.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::StringBuilder;
use arrow_array::{Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_types::{Error, Result, mix64};

use super::id::row_id;
use crate::rng::{Rng, zipf};

/// Separates the random numbers of text from those of the other kinds: "text".
const DOMAIN: u64 = 0x7465_7874;
/// Words of the vocabulary.
const WORDS: u64 = 50_000;
/// Distinct labels.
const LABELS: u64 = 10;
/// Words of the median document.
const MEDIAN_WORDS: f64 = 110.0;
/// Standard deviation of the logarithm of the number of words: lengths vary by orders of magnitude.
const LOG_WORDS_DEVIATION: f64 = 0.9;
/// Words of the longest document.
const MAX_WORDS: f64 = 4000.0;

/// The vocabulary, most frequent word first. Frequent words are short.
static VOCABULARY: LazyLock<Vec<String>> = LazyLock::new(|| (0..WORDS).map(word).collect());

fn word(rank: u64) -> String {
    const STARTS: [&str; 16] =
        ["b", "k", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "ch"];
    const VOWELS: [&str; 8] = ["a", "e", "i", "o", "u", "ai", "ou", "ea"];
    const ENDS: [&str; 8] = ["", "", "", "n", "r", "s", "l", "nd"];
    let mut bits = mix64(rank, 0x776F_7264);
    let syllables = 1 + (rank > 60) as u64 + (rank > 2000) as u64 + bits % 2 * (rank > 10_000) as u64;
    let mut out = String::new();
    for _ in 0..syllables {
        out.push_str(STARTS[(bits & 15) as usize]);
        out.push_str(VOWELS[(bits >> 4 & 7) as usize]);
        out.push_str(ENDS[(bits >> 7 & 7) as usize]);
        bits >>= 10;
    }
    out
}

/// `id, text, label`.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("text", DataType::Utf8, false),
        Field::new("label", DataType::Int64, false),
    ]))
}

/// Documents `start..start + len` of the collection `seed`.
///
/// # Errors
/// `Internal` if Arrow refuses the columns.
pub(crate) fn rows(seed: u64, start: u64, len: usize) -> Result<RecordBatch> {
    let mut ids = Vec::with_capacity(len);
    let mut labels = Vec::with_capacity(len);
    let mut texts = StringBuilder::with_capacity(len, len * 900);
    let mut text = String::new();
    for index in start..start + len as u64 {
        let rng = Rng::new(seed, DOMAIN, index);
        let label = rng.below(LABELS);
        text.clear();
        document(&rng, label, &mut text);
        texts.append_value(&text);
        ids.push(row_id(index)?);
        labels.push(i64::try_from(label).unwrap_or(0));
    }
    RecordBatch::try_new(
        schema(),
        vec![Arc::new(Int64Array::from(ids)), Arc::new(texts.finish()), Arc::new(Int64Array::from(labels))],
    )
    .map_err(|e| Error::internal(format!("text rows: {e}")))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a few thousand")]
fn document(rng: &Rng, label: u64, out: &mut String) {
    let words = (MEDIAN_WORDS * (LOG_WORDS_DEVIATION * rng.normal()).exp()).clamp(3.0, MAX_WORDS) as usize;
    let mut left_in_sentence = 0;
    for i in 0..words {
        let starts_sentence = left_in_sentence == 0;
        if starts_sentence {
            left_in_sentence = 4 + rng.below(18);
            if i > 0 {
                out.push('.');
            }
        }
        if i > 0 {
            out.push(' ');
        }
        left_in_sentence -= 1;
        // One word in eight is a word that only documents with this label use.
        let mut rank = zipf(WORDS, rng.unit());
        if rank > 300 && rng.chance(0.125) {
            rank = 300 + (rank - 300) / LABELS * LABELS + label;
        }
        let word = &VOCABULARY[(rank.min(WORDS - 1)) as usize];
        if starts_sentence {
            out.push(char::from(word.as_bytes()[0].to_ascii_uppercase()));
            out.push_str(&word[1..]);
        } else {
            out.push_str(word);
        }
    }
    out.push('.');
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;

    use super::*;

    #[test]
    fn documents_are_deterministic_and_skewed() {
        let a = rows(1, 0, 400).unwrap();
        assert_eq!(a.slice(100, 50), rows(1, 100, 50).unwrap());
        let mut lengths: Vec<usize> = a.column(1).as_string::<i32>().iter().flatten().map(str::len).collect();
        lengths.sort_unstable();
        assert!(lengths[360] > 5 * lengths[40], "{lengths:?}");
        let one = a.column(1).as_string::<i32>().value(0);
        assert!(one.ends_with('.') && one.contains(' ') && one.is_ascii(), "{one}");
    }
}
