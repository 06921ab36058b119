//! Local files that are no regular files.
//!
//! The opening of a pipe waits for a process that writes to it, and a device may have no end. `object_store` opens whatever
//! is there, so the kind of a file is looked at before.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore, Result};

use super::layer::{Layered, StoreLayer};
use crate::blocking;

/// The store of local files, of which only regular ones are read.
pub(super) type LocalStore = Layered<RegularFiles>;

/// The layer of [`LocalStore`].
#[derive(Debug, Clone)]
pub(super) struct RegularFiles {
    inner: Arc<LocalFileSystem>,
}

impl LocalStore {
    pub(super) fn new() -> Self {
        Layered(RegularFiles { inner: Arc::new(LocalFileSystem::new()) })
    }
}

impl RegularFiles {
    /// # Errors
    /// `Generic` for what is no regular file. What does not exist is left to the read.
    async fn check(&self, location: &Path) -> Result<()> {
        let generic = |source| object_store::Error::Generic { store: "LocalFileSystem", source };
        let path = self.inner.path_to_filesystem(location)?;
        let look = move || std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir());
        match blocking("looking at a local file", look).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(generic(format!("/{location} is not a regular file").into())),
            Err(e) => Err(generic(Box::new(e))),
        }
    }
}

#[async_trait]
impl StoreLayer for RegularFiles {
    const NAME: &'static str = "LocalStore";

    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(location).await?;
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.check(location).await?;
        self.inner.get_ranges(location, ranges).await
    }
}
