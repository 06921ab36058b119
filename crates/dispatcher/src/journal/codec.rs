//! How a group of updates is written: one JSON object that names its format.

use caju_types::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::state::Update;

/// The version of the journal's format.
pub const SCHEMA: &str = "caju.journal/v1";

#[derive(Serialize)]
struct Written<'a> {
    schema: &'static str,
    updates: &'a [Update],
}

#[derive(Deserialize)]
struct Header {
    schema: String,
}

#[derive(Deserialize)]
struct Read {
    updates: Vec<Update>,
}

pub(super) fn encode(updates: &[Update]) -> Result<Vec<u8>> {
    let group = Written { schema: SCHEMA, updates };
    serde_json::to_vec(&group)
        .map_err(|e| Error::internal(format!("journal: an update cannot be written: {e}")))
}

pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Update>> {
    let damaged = |e: serde_json::Error| Error::data_loss(format!("journal: a record is damaged: {e}"));
    let header: Header = serde_json::from_slice(bytes).map_err(damaged)?;
    if header.schema != SCHEMA {
        return Err(Error::data_loss(format!(
            "journal: a record has the format `{}`, this version reads `{SCHEMA}`",
            header.schema
        )));
    }
    let group: Read = serde_json::from_slice(bytes).map_err(damaged)?;
    Ok(group.updates)
}
