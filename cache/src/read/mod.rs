//! Reading a part: checked blocks, decoded as a stream of record batches.

mod arrow;
mod blocks;
mod claims;
mod file;
mod options;
mod parquet;
mod readahead;
mod reader;

pub(crate) use arrow::decode_file as decode_arrow;
pub(crate) use options::PREFETCH;
pub use options::ReadOptions;
pub use reader::PartReader;
