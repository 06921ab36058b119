//! Tables in the shape of the Criteo click logs: a label, thirteen counts with nulls, twenty-six categories.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, StringBuilder};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_types::{Error, Result, mix64};

use crate::rng::{Rng, zipf};

/// Separates the random numbers of tables from those of the other kinds: "tabl".
const DOMAIN: u64 = 0x7461_626C;

/// Of each count: the median and spread of its lognormal distribution, and the fraction of nulls.
const COUNTS: [(f64, f64, f64); 13] = [
    (0.8, 1.3, 0.45),
    (3.0, 2.2, 0.0),
    (6.0, 1.9, 0.21),
    (5.0, 1.1, 0.21),
    (2600.0, 2.1, 0.03),
    (34.0, 1.7, 0.22),
    (4.0, 1.6, 0.04),
    (9.0, 1.1, 0.001),
    (38.0, 1.5, 0.04),
    (0.4, 0.7, 0.45),
    (1.6, 1.0, 0.04),
    (0.2, 1.1, 0.76),
    (4.0, 1.2, 0.21),
];

/// Of each category: the number of distinct values, and the fraction of nulls.
const CATEGORIES: [(u64, f64); 26] = [
    (1460, 0.0),
    (583, 0.0),
    (1_000_000, 0.034),
    (640_000, 0.034),
    (305, 0.0),
    (24, 0.12),
    (12_517, 0.0),
    (633, 0.0),
    (3, 0.0),
    (93_145, 0.0),
    (5683, 0.0),
    (870_000, 0.034),
    (3194, 0.0),
    (27, 0.0),
    (14_992, 0.0),
    (740_000, 0.034),
    (10, 0.0),
    (5652, 0.0),
    (2173, 0.44),
    (4, 0.44),
    (810_000, 0.034),
    (18, 0.76),
    (15, 0.0),
    (286_181, 0.034),
    (105, 0.44),
    (142_572, 0.44),
];

/// `label` (int64), `I1..I13` (int32, nulls) and `C1..C26` (eight hexadecimal digits, nulls).
pub(crate) fn schema() -> SchemaRef {
    let mut fields = vec![Field::new("label", DataType::Int64, false)];
    fields.extend((1..=COUNTS.len()).map(|i| Field::new(format!("I{i}"), DataType::Int32, true)));
    fields.extend((1..=CATEGORIES.len()).map(|i| Field::new(format!("C{i}"), DataType::Utf8, true)));
    Arc::new(Schema::new(fields))
}

/// Rows `start..start + len` of the table `seed`.
///
/// # Errors
/// `Internal` if Arrow refuses the columns.
pub(crate) fn rows(seed: u64, start: u64, len: usize) -> Result<RecordBatch> {
    let mut labels = Vec::with_capacity(len);
    let mut counts: Vec<Int32Builder> = COUNTS.iter().map(|_| Int32Builder::with_capacity(len)).collect();
    let mut categories: Vec<StringBuilder> =
        CATEGORIES.iter().map(|_| StringBuilder::with_capacity(len, len * 8)).collect();
    for index in start..start + len as u64 {
        let rng = Rng::new(seed, DOMAIN, index);
        // The log-odds of the label depend on the columns, so that a model has something to learn.
        let mut log_odds = -1.3;
        for ((median, spread, nulls), out) in COUNTS.iter().zip(&mut counts) {
            if rng.chance(*nulls) {
                out.append_null();
                continue;
            }
            let z = rng.normal();
            log_odds += z * 0.08;
            out.append_value(count(median * (spread * z).exp()));
        }
        for (column, ((size, nulls), out)) in CATEGORIES.iter().zip(&mut categories).enumerate() {
            if rng.chance(*nulls) {
                out.append_null();
                continue;
            }
            let rank = zipf(*size, rng.unit());
            let value = mix64(column as u64 + 1, rank);
            log_odds += ((value >> 40) & 0xFF) as f64 / 1024.0 - 0.125;
            push_hex(out, value);
        }
        labels.push(i64::from(rng.unit() < 1.0 / (1.0 + (-log_odds).exp())));
    }
    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(labels))];
    columns.extend(counts.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
    columns.extend(categories.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
    RecordBatch::try_new(schema(), columns).map_err(|e| Error::internal(format!("table rows: {e}")))
}

#[expect(clippy::cast_possible_truncation, reason = "float to int saturates, and the bound is small")]
fn count(v: f64) -> i32 {
    v.min(2e6) as i32
}

/// Eight hexadecimal digits, without an allocation.
fn push_hex(out: &mut StringBuilder, value: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let text: [u8; 8] = std::array::from_fn(|i| DIGITS[((value >> (28 - 4 * i)) & 15) as usize]);
    out.append_value(std::str::from_utf8(&text).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::{Array, types::Int64Type};

    use super::*;

    #[test]
    fn rows_are_deterministic_and_skewed() {
        let a = rows(1, 0, 2000).unwrap();
        assert_eq!(a.slice(500, 100), rows(1, 500, 100).unwrap());
        assert_ne!(a, rows(2, 0, 2000).unwrap());
        let i1 = a.column_by_name("I1").unwrap();
        assert!((700..1100).contains(&i1.null_count()), "{}", i1.null_count());
        let labels = a.column(0).as_primitive::<Int64Type>();
        let clicks: i64 = labels.values().iter().sum();
        assert!((300..800).contains(&clicks), "{clicks}");
        let c3 = a.column_by_name("C3").unwrap().as_string::<i32>();
        let mut seen = std::collections::HashMap::<&str, u32>::new();
        for v in c3.iter().flatten() {
            assert_eq!(v.len(), 8);
            *seen.entry(v).or_default() += 1;
        }
        let most_frequent = *seen.values().max().unwrap();
        assert!(seen.len() > 500 && most_frequent > 60, "{} {most_frequent}", seen.len());
        let c9 = a.column_by_name("C9").unwrap().as_string::<i32>();
        assert_eq!(c9.iter().flatten().collect::<std::collections::HashSet<_>>().len(), 3);
    }
}
