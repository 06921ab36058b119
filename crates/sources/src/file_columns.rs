//! The columns that all files of a source must have.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};
use caju_types::{Error, Result, did_you_mean};

/// The columns of a source, and the file that they were found in.
#[derive(Debug, Clone)]
pub(crate) struct FileColumns {
    pub(crate) schema: SchemaRef,
    /// Only some columns are read: files may have others.
    picked: bool,
    /// The file that the schema is from, if it is known.
    model: Option<String>,
}

impl FileColumns {
    /// The columns of the first file, or those of them that the definition names.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that the file does not have.
    pub(crate) fn found(schema: SchemaRef, columns: Option<&[String]>, url: &str) -> Result<Self> {
        let schema = match columns {
            None => schema,
            Some(columns) => pick(&schema, columns, url)?,
        };
        Ok(Self { schema, picked: columns.is_some(), model: Some(url.to_owned()) })
    }

    /// Columns that are known without a file.
    pub(crate) fn known(schema: SchemaRef, picked: bool) -> Self {
        Self { schema, picked, model: None }
    }

    /// The place of every column in a file. `read_as` gives the type that a type of the file is read as.
    ///
    /// # Errors
    /// `InvalidArgument` for a file that has other columns than its siblings.
    pub(crate) fn places(
        &self,
        found: &Schema,
        url: &str,
        read_as: impl Fn(&DataType) -> DataType,
    ) -> Result<Vec<usize>> {
        let model = self.model.as_deref().unwrap_or("the first file of the source");
        let differs = |what: String| {
            Error::invalid(format!(
                "{url}: its schema differs from that of {model}: {what}; give the source only files of one schema, \
                 or name the columns that they share in `columns`"
            ))
        };
        let place = |want: &arrow_schema::FieldRef| {
            let Some((at, field)) = found.column_with_name(want.name()) else {
                return Err(differs(format!("it has no column `{}`", want.name())));
            };
            if found.fields().iter().filter(|other| other.name() == want.name()).nth(1).is_some() {
                return Err(differs(format!("it has several columns `{}`", want.name())));
            }
            let is = read_as(field.data_type());
            if &is != want.data_type() {
                let what = format!("column `{}` is {is} instead of {}", want.name(), want.data_type());
                return Err(differs(what));
            }
            // The shape of a tensor is no part of its data type.
            match caju_kernels::differing_tensors(field, want) {
                Some((is, wanted)) => {
                    Err(differs(format!("column `{}` has {is} instead of {wanted}", want.name())))
                }
                None => Ok(at),
            }
        };
        let places = self.schema.fields().iter().map(place).collect::<Result<Vec<_>>>()?;
        let is_extra = |field: &&arrow_schema::FieldRef| self.schema.field_with_name(field.name()).is_err();
        match found.fields().iter().find(is_extra).filter(|_| !self.picked) {
            Some(extra) => Err(differs(format!("it has a column `{}`", extra.name()))),
            None => Ok(places),
        }
    }
}

/// The columns of a schema that a definition names, in its order.
fn pick(schema: &Schema, columns: &[String], url: &str) -> Result<SchemaRef> {
    let fields = columns
        .iter()
        .map(|name| {
            schema.fields().iter().find(|f| f.name() == name).cloned().ok_or_else(|| {
                let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
                Error::invalid(format!(
                    "{url}: has no column `{name}`{}; its columns are {}",
                    did_you_mean(name, &names),
                    names.join(", ")
                ))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

/// Where each of the given columns of a file is among them in the order of the file, in which decoders give them.
pub(crate) fn file_order(columns: &[usize]) -> Vec<usize> {
    let mut sorted = columns.to_vec();
    sorted.sort_unstable();
    columns.iter().map(|r| sorted.partition_point(|s| s < r)).collect()
}
