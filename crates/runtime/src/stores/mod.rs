//! Object stores by URL: naming, opening, listing and counting all that is read and written.
//!
//! Every object has exactly one name: `file:///data/a.parquet`, `s3://bucket/key`, `memory://name/key`. Keys are literal.
//! Only `file://` URLs are percent-decoded.

mod access;
mod count;
mod durable;
mod error;
mod file;
mod glob;
mod layer;
mod list;
mod local;
mod regular;
mod resolve;
mod settled;
mod url;

pub use access::Access;
pub use count::{Counting, CountingStore, IoCounters, IoSnapshot};
pub use durable::{Durable, DurableStore};
pub use error::{io_error, store_error};
pub use file::{Listed, local_version, open_file};
pub use glob::{may_lie_in, without_links};
pub use layer::{Layered, StoreLayer};
pub use resolve::{Location, Stores};
pub use settled::is_settled;
pub use url::StoreUrl;

#[cfg(test)]
mod tests;
