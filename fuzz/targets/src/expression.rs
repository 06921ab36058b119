//! Expressions: bound to rows of every common type, and computed. An error, or one value of the promised type per row.

use std::sync::{Arc, LazyLock};

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Float32Array, Int64Array, ListArray, RecordBatch,
    StringArray, UInt64Array,
};

use crate::environment::{REGISTRY, block_on};

static ROWS: LazyLock<RecordBatch> = LazyLock::new(|| {
    let lists = [Some(vec![Some(1), None, Some(3)]), None, Some(vec![])];
    let pixels: &[u8] = include_bytes!("../../../crates/image/fixtures/grey.png");
    let columns: [(&str, ArrayRef); 6] = [
        ("i", Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(7)]))),
        ("f", Arc::new(Float32Array::from(vec![Some(f32::NAN), Some(-0.5), None]))),
        ("b", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None]))),
        ("s", Arc::new(StringArray::from(vec![Some("a ü 日"), Some(""), None]))),
        ("l", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("image", Arc::new(BinaryArray::from_opt_vec(vec![Some(pixels), Some(&[0xff, 0xd8][..]), None]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, true))).unwrap()
});

#[expect(clippy::disallowed_methods, reason = "a panic has to arrive as it is: it is what is looked for")]
pub(crate) fn one(data: &[u8]) {
    let Ok(sql) = std::str::from_utf8(data) else { return };
    let rows = &*ROWS;
    let sql = sql.to_string();
    // On another thread, so that an expression that does not end is noticed.
    let ended = block_on(async move { tokio::task::spawn_blocking(move || compute(&sql, rows)).await });
    if let Err(e) = ended {
        std::panic::resume_unwind(e.into_panic());
    }
}

fn compute(sql: &str, rows: &RecordBatch) {
    let bound = match REGISTRY.bind("steps[0].map", &[("y".into(), sql.into())], &rows.schema()) {
        Ok(bound) => bound,
        Err(e) => return assert!(!e.message().is_empty()),
    };
    let keys: UInt64Array = (0..rows.num_rows() as u64).map(|i| caju_types::mix64(9, i)).collect();
    match bound.evaluate(rows, bound.is_random().then_some(&keys)) {
        Ok(columns) => {
            assert_eq!(columns.len(), 1);
            assert_eq!(columns[0].len(), rows.num_rows(), "values of {sql}");
            assert_eq!(columns[0].data_type(), bound.fields()[0].data_type(), "the type of {sql}");
        }
        Err(e) => assert!(e.row.is_none_or(|r| r < rows.num_rows()) && !e.error.message().is_empty(), "{e}"),
    }
}
