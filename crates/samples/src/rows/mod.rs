//! Rows of each kind, as Arrow record batches.

mod id;
pub(crate) mod images;
pub(crate) mod table;
pub(crate) mod text;
