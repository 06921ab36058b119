//! What the columns of rows may be: their names and types, whatever a file, an expression or a function says.

use std::collections::HashSet;

use arrow::datatypes::{DataType, Field, Fields, Schema};
use caju_pipeline::{MAX_TYPE_LEVELS, reserved_prefix};
use caju_types::{Error, Result};

/// Checks the columns of rows.
///
/// # Errors
/// `InvalidArgument` that names the column: its name is reserved, its type is nested too deep, or two columns, or two fields of a
/// struct, have one name.
pub fn check_columns(schema: &Schema) -> Result<()> {
    schema.fields().iter().try_for_each(|field| {
        let name = field.name();
        if let Some(prefix) = reserved_prefix(name) {
            return Err(Error::invalid(format!(
                "the column `{name}`: names that begin with `{prefix}` are reserved; rename the column, or leave it out"
            )));
        }
        if is_deeper(field.data_type(), MAX_TYPE_LEVELS) {
            return Err(Error::invalid(format!("the column `{name}` is {}", too_deep())));
        }
        match repeated_field(field.data_type()) {
            Some(inner) => Err(Error::invalid(format!(
                "the column `{name}` has a struct with two fields `{inner}`, one of which would be lost; rename one"
            ))),
            None => Ok(()),
        }
    })?;
    match repeated(schema.fields()) {
        Some(name) => Err(Error::invalid(format!(
            "there are two columns `{name}`, one of which would be lost; rename one, or leave one out"
        ))),
        None => Ok(()),
    }
}

/// A name that several of these fields have.
fn repeated(fields: &Fields) -> Option<&str> {
    let mut names = HashSet::new();
    fields.iter().map(|field| field.name().as_str()).find(|name| !names.insert(*name))
}

/// A name that several fields of a struct within a type have. The type has few levels.
fn repeated_field(of: &DataType) -> Option<&str> {
    let of = without_dictionary(of);
    let repeated = match of {
        DataType::Struct(fields) => repeated(fields),
        _ => None,
    };
    repeated.or_else(|| inner_fields(of).into_iter().find_map(|field| repeated_field(field.data_type())))
}

/// What is wrong with a type of too many levels, for messages.
pub fn too_deep() -> String {
    format!("nested deeper than {MAX_TYPE_LEVELS} levels of lists, structs and maps; flatten it")
}

/// Whether more than `levels` levels are nested in a type. The recursion ends there.
fn is_deeper(of: &DataType, levels: usize) -> bool {
    let inner = inner_fields(without_dictionary(of));
    match levels.checked_sub(1) {
        Some(left) => inner.into_iter().any(|field| is_deeper(field.data_type(), left)),
        None => !inner.is_empty(),
    }
}

/// A type, or that of its values if it is a dictionary, which is no level of a schema.
fn without_dictionary(mut of: &DataType) -> &DataType {
    while let DataType::Dictionary(_, value) = of {
        of = value;
    }
    of
}

/// The fields that a type nests.
fn inner_fields(of: &DataType) -> Vec<&Field> {
    match of {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _)
        | DataType::RunEndEncoded(_, item) => vec![item],
        DataType::Struct(fields) => fields.iter().map(AsRef::as_ref).collect(),
        DataType::Union(fields, _) => fields.iter().map(|(_, field)| field.as_ref()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn nested(levels: usize, wrap: impl Fn(Field) -> DataType) -> Schema {
        let leaf = Field::new("item", DataType::Int64, true);
        let field = (0..levels).fold(leaf, |field, _| Field::new("x", wrap(field), true));
        Schema::new(vec![field.with_name("x")])
    }

    #[test]
    fn types_of_too_many_levels_are_refused() {
        let list = |field: Field| DataType::List(Arc::new(field));
        let wrap: [&dyn Fn(Field) -> DataType; 4] = [
            &list,
            &|field| DataType::Struct(vec![field].into()),
            &|field| DataType::FixedSizeList(Arc::new(field), 1),
            &|field| DataType::Dictionary(Box::new(DataType::Int8), Box::new(list(field))),
        ];
        for wrap in wrap {
            check_columns(&nested(MAX_TYPE_LEVELS, wrap)).unwrap();
            let e = check_columns(&nested(MAX_TYPE_LEVELS + 1, wrap)).unwrap_err();
            assert_eq!(
                e.message(),
                "the column `x` is nested deeper than 32 levels of lists, structs and maps; flatten it"
            );
        }
    }

    #[test]
    fn reserved_names_are_refused() {
        for name in ["caju.split", "caju.row", "caju.x", "__caju_key", "__caju_common_1"] {
            let e = check_columns(&Schema::new(vec![Field::new(name, DataType::Int64, true)])).unwrap_err();
            assert!(e.message().starts_with(&format!("the column `{name}`: names that begin with")), "{e}");
        }
        for name in ["caju", "cajus.row", "x.caju.row", "__key__"] {
            check_columns(&Schema::new(vec![Field::new(name, DataType::Int64, true)])).unwrap();
        }
    }

    #[test]
    fn two_columns_or_fields_of_one_name_are_refused() {
        let x = || Field::new("x", DataType::Int64, true);
        let list =
            |of: Vec<Field>| DataType::List(Arc::new(Field::new("item", DataType::Struct(of.into()), true)));
        let e =
            check_columns(&Schema::new(vec![x(), Field::new("y", DataType::Int64, true), x()])).unwrap_err();
        assert_eq!(
            e.message(),
            "there are two columns `x`, one of which would be lost; rename one, or leave one out"
        );
        let e = check_columns(&Schema::new(vec![Field::new("s", list(vec![x(), x()]), true)])).unwrap_err();
        assert_eq!(
            e.message(),
            "the column `s` has a struct with two fields `x`, one of which would be lost; rename one"
        );
        let apart = vec![x(), Field::new("s", list(vec![x(), Field::new("y", DataType::Int64, true)]), true)];
        check_columns(&Schema::new(apart)).unwrap();
    }
}
