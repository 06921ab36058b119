//! How a group of updates is written: MessagePack with the names of fields, compressed where that is worth it.
//!
//! The first version wrote JSON, which is still read: the first byte of a record says which form it has. The names of fields
//! and variants are the same in both, and each field is optional as serde says, so what came later is added in the same way.

use std::borrow::Cow;

use caju_types::{Error, Result};
use serde::Deserialize;
use zstd::bulk::Compressor;

use crate::state::Update;

/// The version of the journal's format. A database names it.
pub const SCHEMA: &str = "caju.journal/v2";
/// What the formats of all versions begin with; the number of the version follows.
pub(super) const SCHEMA_PREFIX: &str = "caju.journal/v";
/// Versions that are read, and become [`SCHEMA`] when something is written.
pub const FORMER_SCHEMAS: &[&str] = &["caju.journal/v1"];

/// The first byte of JSON, the form of `caju.journal/v1`.
const JSON: u8 = b'{';
/// The first byte of plain MessagePack.
const PLAIN: u8 = 2;
/// The first byte of MessagePack in a frame of zstd.
const COMPRESSED: u8 = 3;
/// Bytes from which a group is compressed. A lease of a few splits has more, since their descriptions repeat each other.
const COMPRESS_FROM: usize = 512;
/// The fastest level of zstd that compresses descriptions of splits to a tenth.
const LEVEL: i32 = 1;

#[derive(Deserialize)]
struct Header {
    schema: String,
}

#[derive(Deserialize)]
struct Read {
    updates: Vec<Update>,
}

/// Encodes groups, one after another.
pub(super) struct Encoder {
    compressor: Compressor<'static>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Encoder {
    /// # Errors
    /// `ResourceExhausted` if there is no memory for the compressor.
    pub(super) fn new() -> Result<Self> {
        let failed =
            |e: std::io::Error| Error::exhausted(format!("the compression of the journal cannot start: {e}"));
        let mut compressor = Compressor::new(LEVEL).map_err(failed)?;
        compressor.include_checksum(true).map_err(failed)?;
        Ok(Self { compressor })
    }

    /// The stored form of a group.
    ///
    /// # Errors
    /// `Internal` for a group that cannot be written.
    pub(super) fn encode(&mut self, updates: &[Update]) -> Result<Vec<u8>> {
        let failed =
            |e: &dyn std::fmt::Display| Error::internal(format!("journal: an update cannot be written: {e}"));
        let mut plain = vec![PLAIN];
        rmp_serde::encode::write_named(&mut plain, updates).map_err(|e| failed(&e))?;
        let Some(packed) = plain.get(1..).filter(|packed| packed.len() >= COMPRESS_FROM) else {
            return Ok(plain);
        };
        let mut frame = self.compressor.compress(packed).map_err(|e| failed(&e))?;
        frame.insert(0, COMPRESSED);
        Ok(frame)
    }
}

/// A group in its stored form.
#[derive(Debug)]
pub struct EncodedGroup(Vec<u8>);

impl EncodedGroup {
    /// Encodes a group.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is no memory for the compressor, `Internal` for a group that cannot be written.
    pub fn new(group: &[Update]) -> Result<Self> {
        Encoder::new()?.encode(group).map(Self)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Reads a group in either form.
///
/// # Errors
/// `DataLoss` for anything else.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Update>> {
    let damaged = |e: &dyn std::fmt::Display| Error::data_loss(format!("journal: a record is damaged: {e}"));
    let packed = match bytes.split_first() {
        Some((&JSON, _)) => return decode_json(bytes),
        Some((&PLAIN, packed)) => Cow::Borrowed(packed),
        Some((&COMPRESSED, frame)) => Cow::Owned(zstd::stream::decode_all(frame).map_err(|e| damaged(&e))?),
        Some((form, _)) => {
            return Err(Error::data_loss(format!(
                "journal: a record has the form {form}, which this version does not read"
            )));
        }
        None => return Err(damaged(&"it is empty")),
    };
    let mut input: &[u8] = &packed;
    let updates = rmp_serde::decode::from_read(&mut input).map_err(|e| damaged(&e))?;
    if input.is_empty() { Ok(updates) } else { Err(damaged(&"bytes follow its end")) }
}

/// Reads a group of `caju.journal/v1`.
fn decode_json(bytes: &[u8]) -> Result<Vec<Update>> {
    let damaged = |e: serde_json::Error| Error::data_loss(format!("journal: a record is damaged: {e}"));
    let header: Header = serde_json::from_slice(bytes).map_err(damaged)?;
    if !FORMER_SCHEMAS.contains(&header.schema.as_str()) {
        return Err(Error::data_loss(format!(
            "journal: a record has the format `{}`, this version reads `{SCHEMA}` and {}",
            header.schema,
            FORMER_SCHEMAS.join(", ")
        )));
    }
    let group: Read = serde_json::from_slice(bytes).map_err(damaged)?;
    Ok(group.updates)
}
