//! tf.train.Example: any bytes as one record, with features of every type and shape. An error, or one row.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use arrow_array::{Array, BinaryArray};
use caju_pipeline::{ColumnType, Feature, FeatureShape};
use caju_sources::parse_example;

static FEATURES: LazyLock<Vec<(String, Feature)>> = LazyLock::new(|| {
    let shapes = [FeatureShape::Scalar, FeatureShape::Fixed(2), FeatureShape::List];
    let types = BTreeMap::from([
        ("bytes", ColumnType::Bytes),
        ("float", ColumnType::Float32),
        ("int", ColumnType::Int64),
    ]);
    let mut out = Vec::new();
    for (name, dtype) in types {
        for (shape, of) in shapes.iter().zip(["one", "two", "list"]) {
            let feature = Feature { dtype, shape: shape.clone(), optional: true };
            out.push((format!("{name}-{of}"), feature));
        }
    }
    out
});

pub(crate) fn one(data: &[u8]) {
    let records = BinaryArray::from_iter_values([data]);
    match parse_example(&records, &FEATURES) {
        Ok(columns) => assert!(columns.iter().all(|c| c.len() == 1), "a column without its row"),
        Err((row, e)) => assert!(row == 0 && !e.message().is_empty(), "row {row}: {e}"),
    }
}
