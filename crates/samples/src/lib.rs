//! Generated sample data: photos, tables and text that cost a decoder, a codec or a hash what real data costs.
//!
//! A row depends on the seed and its index alone. Files are cut by index. The number of threads, the number of
//! files written at once and the other formats of a run therefore never change a row. Memory is bounded by the
//! files written at once.
//!
//! [`SampleSet`] describes a set of files, and [`write()`] generates it; this is what `caju gen` does. [`Kind::rows`]
//! and [`photo()`] give rows and photos without files, for tests and benchmarks.

mod encode;
mod folder;
mod format;
mod kind;
mod layout;
mod photo;
mod rng;
mod rows;
mod set;
mod write;

pub use format::Format;
pub use kind::Kind;
pub use photo::{Photo, photo, photo_of_size};
pub use set::SampleSet;
pub use write::{StopFlag, WriteProgress, is_complete, write};
