//! Types of columns as people write them.

use std::collections::HashMap;

use arrow_schema::{DataType, Field};

/// A column's type as people write it: `float32[224, 224, 3]`, `int64`, `list of string`.
pub fn type_name(field: &Field) -> String {
    if let Some(tensor) = tensor_name(field) {
        return tensor;
    }
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) => format!("list of {}", type_name(item)),
        DataType::FixedSizeList(item, n) => format!("{}[{n}]", type_name(item)),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytes".into(),
        DataType::Boolean => "bool".into(),
        other => other.to_string().to_lowercase(),
    }
}

fn tensor_name(field: &Field) -> Option<String> {
    let metadata: &HashMap<String, String> = field.metadata();
    let name = metadata.get("ARROW:extension:name")?;
    match (name.as_str(), field.data_type()) {
        ("arrow.fixed_shape_tensor", DataType::FixedSizeList(item, _)) => {
            let extension: serde_json::Value =
                serde_json::from_str(metadata.get("ARROW:extension:metadata")?).ok()?;
            let shape: Vec<String> =
                extension.get("shape")?.as_array()?.iter().map(ToString::to_string).collect();
            Some(format!("{}[{}]", type_name(item), shape.join(", ")))
        }
        ("arrow.variable_shape_tensor", DataType::Struct(fields)) => {
            let DataType::List(item) = fields.first()?.data_type() else { return None };
            Some(format!("{}[any shape]", type_name(item)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn types_for_people() {
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let tensor =
            Field::new("image", DataType::FixedSizeList(item, 12), false).with_metadata(HashMap::from([
                ("ARROW:extension:name".to_string(), "arrow.fixed_shape_tensor".to_string()),
                ("ARROW:extension:metadata".to_string(), r#"{"shape":[2,2,3]}"#.to_string()),
            ]));
        assert_eq!(type_name(&tensor), "float32[2, 2, 3]");
        let words = Field::new_list("words", Field::new("item", DataType::Utf8, true), true);
        assert_eq!(type_name(&words), "list of string");
    }
}
