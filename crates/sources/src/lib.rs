//! Readers of every format: they list splits and read the rows of one split.
//!
//! [`open_source`] turns a [`SourceDef`](caju_pipeline::SourceDef) into a [`Source`], which lists [`Split`]s lazily, in
//! canonical order, and reads the rows of one split as a stream of record batches bounded in rows and in bytes. Reads are
//! bound to the version of the file that was listed: a file that changed since is an error, never other rows.

#[cfg(test)]
mod bad_rows_tests;
mod caches;
mod combine;
mod context;
mod csv;
mod csv_rows;
mod dictionary_keys;
mod example;
mod feed;
mod file;
mod file_columns;
mod files;
mod guard;
mod images;
mod inline_table;
mod ipc;
mod ipc_bounds;
mod json;
mod json_scan;
mod leaf_schemas;
mod line_reader;
mod lines;
mod listing_cache;
mod load;
mod open;
mod parquet;
mod parquet_bounds;
mod parquet_types;
mod plain;
mod read_observer;
mod record_scan;
mod row_counts;
mod row_groups;
#[cfg(test)]
mod s3_tests;
mod save_polls;
mod shard;
mod sniff;
mod source;
mod split;
mod split_reader;
mod tar;
#[cfg(test)]
mod test_util;
#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test data")]
mod tests;
mod text;
mod tfrecord;
mod thrift;
mod trim;
mod webdataset;
mod zip;

pub use caches::SourceCaches;
pub use context::{SourceContext, SourceLimits};
pub use dictionary_keys::with_wide_keys;
pub use example::{feature_field, parse_example};
pub use guard::read_split;
pub use inline_table::{InlineTable, WriteIpc, register_batches, register_inline_table};
pub use leaf_schemas::source_schema;
pub use listing_cache::ListingCache;
pub use open::open_source;
pub use read_observer::{ReadObserver, with_read_observer};
pub use shard::{ShardBy, by_file, has_files};
pub use source::{ReadOptions, RowPredicate, RowTest, SkipFn, Source, child_split};
pub use split::{FileRef, FileVersion, KeyHasher, Split, SplitRange, Stride, split_key};
