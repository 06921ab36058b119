//! Reading the setting `reorder`.

use std::collections::BTreeMap;

use caju_types::Result;

use super::args::{Args, At};
use crate::reorder::Reorder;

/// Reads `true`, `false` or `{ measured: { 1.with_columns: 0.25 } }`.
pub(super) fn read(at: &At<'_>) -> Result<Option<Reorder>> {
    const EXAMPLE: &str = "reorder: { measured: { 1.with_columns: 0.25 } }";
    if let Some(is_on) = at.value.as_bool() {
        return Ok(is_on.then(Reorder::default));
    }
    if !at.value.is_object() {
        return Err(at.wrong("true, false or `{ measured: { 1.with_columns: 0.25 } }`"));
    }
    let mut args = Args::new(at.clone(), None, EXAMPLE)?;
    let mut measured = BTreeMap::new();
    if let Some(list) = args.get("measured") {
        for (name, factor) in list.entries("factors by the name of a stage")? {
            measured.insert(name, factor.f64("bytes out per byte in, such as 0.25")?);
        }
    }
    args.finish()?;
    Ok(Some(Reorder { measured }))
}
