//! A local store whose writes are on the disk when they return.
//!
//! object_store's local store leaves it to the kernel when the bytes of a file, and its name, reach the disk. After a power
//! failure a file that was written minutes before may be empty or gone. A cache tolerates that: damaged parts are computed
//! again. Saved rows have to survive.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, MultipartUpload, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result, UploadPart,
};
use parking_lot::Mutex;

use super::count::IoCounters;
use super::layer::{Layered, StoreLayer};

/// The number of the next staging file. Staging files are named `NAME#123`, and listings leave them out.
static NEXT_STAGED: AtomicU64 = AtomicU64::new(0);

/// A local store whose writes are synced to the disk. When a write has returned, the file's bytes, its name and the folders
/// above it survive a power failure. An object that is written in one request exists as a whole or not at all. So objects
/// that are written one after another reach the disk in that order.
pub type DurableStore = Layered<Durable>;

/// The layer of [`DurableStore`].
#[derive(Debug, Clone)]
pub struct Durable {
    inner: Arc<dyn ObjectStore>,
    folders: Arc<Folders>,
}

/// Writes files, and syncs them and their folders.
#[derive(Debug)]
struct Folders {
    /// Folders that were synced before, with all folders above them.
    synced: Mutex<HashSet<PathBuf>>,
    disk: Arc<dyn Disk>,
}

/// Syncing, so that tests can observe it.
trait Disk: fmt::Debug + Send + Sync {
    /// Waits until the bytes of a file are on the disk.
    fn sync_file(&self, path: &FilePath, file: &File) -> io::Result<()>;

    /// Waits until the names in a folder are on the disk.
    fn sync_folder(&self, path: &FilePath) -> io::Result<()>;
}

/// The system's disks. Counts the syncs.
#[derive(Debug)]
struct System(Arc<IoCounters>);

impl Disk for System {
    fn sync_file(&self, _: &FilePath, file: &File) -> io::Result<()> {
        self.0.add_sync();
        file.sync_all()
    }

    fn sync_folder(&self, path: &FilePath) -> io::Result<()> {
        self.0.add_sync();
        match File::open(path).and_then(|folder| folder.sync_all()) {
            // An unreadable folder was not created here, and some file systems cannot sync folders.
            Err(e) if is_unsupported(&e) => Ok(()),
            other => other,
        }
    }
}

fn is_unsupported(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

impl DurableStore {
    /// Decorates the store of the local file system, whose paths are those of files without the leading slash. Syncs are
    /// counted in `io`.
    pub fn new(inner: Arc<dyn ObjectStore>, io: Arc<IoCounters>) -> Self {
        Self::with(inner, Arc::new(System(io)))
    }

    fn with(inner: Arc<dyn ObjectStore>, disk: Arc<dyn Disk>) -> Self {
        Layered(Durable { inner, folders: Arc::new(Folders { synced: Mutex::default(), disk }) })
    }
}

impl Folders {
    /// Waits until a file's name is on the disk, and the names of all folders above it.
    fn sync_name(&self, file: &FilePath) -> io::Result<()> {
        for (i, folder) in file.ancestors().skip(1).filter(|f| !f.as_os_str().is_empty()).enumerate() {
            // The file's own folder has a new name each time. Folders above it had one when they were first synced.
            if i > 0 && self.synced.lock().contains(folder) {
                break;
            }
            self.disk.sync_folder(folder)?;
            self.synced.lock().insert(folder.to_path_buf());
        }
        Ok(())
    }

    /// Writes a file under a staging name, syncs its bytes, and then gives it its own name.
    fn put(&self, path: &FilePath, payload: &PutPayload, only_new: bool) -> io::Result<()> {
        let staged = self.stage(path, payload)?;
        let named = match only_new {
            true => std::fs::hard_link(&staged, path),
            false => std::fs::rename(&staged, path),
        };
        if only_new || named.is_err() {
            // The staging name. If it stays, `cache gc` removes it.
            drop(std::fs::remove_file(&staged));
        }
        named?;
        self.sync_name(path)
    }

    fn stage(&self, path: &FilePath, payload: &PutPayload) -> io::Result<PathBuf> {
        loop {
            let mut staged = path.as_os_str().to_owned();
            staged.push(format!("#{}{}", std::process::id(), NEXT_STAGED.fetch_add(1, Ordering::Relaxed)));
            let staged = PathBuf::from(staged);
            let mut file = match File::create_new(&staged) {
                Ok(file) => file,
                // An earlier process left it.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    std::fs::create_dir_all(path.parent().ok_or(e)?)?;
                    continue;
                }
                Err(e) => return Err(e),
            };
            let written = payload.iter().try_for_each(|piece| io::Write::write_all(&mut file, piece));
            return match written.and_then(|()| self.disk.sync_file(&staged, &file)) {
                Ok(()) => Ok(staged),
                Err(e) => {
                    drop(std::fs::remove_file(&staged));
                    Err(e)
                }
            };
        }
    }

    /// Syncs an existing file.
    fn sync_existing(&self, path: &FilePath) -> io::Result<()> {
        self.disk.sync_file(path, &File::open(path)?)?;
        self.sync_name(path)
    }
}

fn file_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("/{path}"))
}

/// Does file system work on a thread that may block.
async fn blocking(
    path: &Path,
    folders: &Arc<Folders>,
    work: impl FnOnce(&Folders, &FilePath) -> io::Result<()> + Send + 'static,
) -> Result<()> {
    let (file, folders) = (file_of(path), Arc::clone(folders));
    let done = crate::tasks::blocking("writing a file durably", move || work(&folders, &file)).await;
    let done = done.map_err(|e| Error::Generic { store: "DurableStore", source: e.into() })?;
    done.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { path: path.to_string(), source: e.into() },
        io::ErrorKind::NotFound => Error::NotFound { path: path.to_string(), source: e.into() },
        _ => Error::Generic { store: "DurableStore", source: e.into() },
    })
}

#[async_trait]
impl StoreLayer for Durable {
    const NAME: &'static str = "DurableStore";

    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let only_new = match opts.mode {
            PutMode::Create => true,
            PutMode::Overwrite => false,
            // The local store does not support it, and says so.
            PutMode::Update(_) => return self.inner.put_opts(location, payload, opts).await,
        };
        blocking(location, &self.folders, move |folders, file| folders.put(file, &payload, only_new)).await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(Upload { inner, path: location.clone(), folders: Arc::clone(&self.folders) }))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await?;
        blocking(to, &self.folders, Folders::sync_existing).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await?;
        blocking(to, &self.folders, Folders::sync_existing).await
    }
}

/// A multipart upload that is synced at its end.
#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    path: Path,
    folders: Arc<Folders>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let result = self.inner.complete().await?;
        blocking(&self.path, &self.folders, Folders::sync_existing).await?;
        Ok(result)
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use object_store::ObjectStoreExt;
    use object_store::local::LocalFileSystem;

    use super::*;

    /// Records syncs, and whether the object existed by then.
    #[derive(Debug, Default)]
    struct Noted {
        object: Mutex<PathBuf>,
        seen: Mutex<Vec<(PathBuf, bool)>>,
    }

    impl Noted {
        fn note(&self, path: &FilePath) -> io::Result<()> {
            let there = self.object.lock().exists();
            self.seen.lock().push((path.to_path_buf(), there));
            Ok(())
        }

        fn take(&self) -> Vec<(PathBuf, bool)> {
            std::mem::take(&mut *self.seen.lock())
        }
    }

    impl Disk for Noted {
        fn sync_file(&self, path: &FilePath, _: &File) -> io::Result<()> {
            self.note(path)
        }

        fn sync_folder(&self, path: &FilePath) -> io::Result<()> {
            self.note(path)
        }
    }

    fn store() -> (tempfile::TempDir, Path, Arc<Noted>, DurableStore) {
        let folder = tempfile::tempdir().unwrap();
        let object = folder.path().join("a/b/object");
        let path = Path::from_absolute_path(&object).unwrap();
        let noted = Arc::new(Noted { object: Mutex::new(object), ..Noted::default() });
        let store = DurableStore::with(Arc::new(LocalFileSystem::new()), Arc::clone(&noted) as _);
        (folder, path, noted, store)
    }

    async fn content(store: &DurableStore, path: &Path) -> Bytes {
        store.get(path).await.unwrap().bytes().await.unwrap()
    }

    #[tokio::test]
    async fn bytes_are_synced_before_the_name_and_the_name_before_its_folders() {
        let (folder, path, noted, store) = store();
        store.put(&path, "one".into()).await.unwrap();
        let seen = noted.take();
        let names: Vec<_> = seen.iter().map(|(path, _)| path.clone()).collect();
        assert!(names[0].to_str().unwrap().contains("object#"), "{names:?}");
        assert!(!seen[0].1, "the object is not there before its bytes are on the disk");
        assert_eq!(names[1..4], [folder.path().join("a/b"), folder.path().join("a"), folder.path().into()]);
        assert!(seen[1..].iter().all(|(_, there)| *there), "{seen:?}");
        assert_eq!(names.last().unwrap(), FilePath::new("/"));
        store.put(&path, "two".into()).await.unwrap();
        assert_eq!(noted.take().len(), 2, "folders are known by now: the file and its folder");
        assert_eq!(content(&store, &path).await, "two");
        assert_eq!(std::fs::read_dir(folder.path().join("a/b")).unwrap().count(), 1, "nothing else is left");
    }

    #[tokio::test]
    async fn what_is_there_is_not_created_again() {
        let (folder, path, noted, store) = store();
        let create = |text: &'static str| store.put_opts(&path, text.into(), PutMode::Create.into());
        create("one").await.unwrap();
        assert!(!noted.take().is_empty());
        assert!(matches!(create("two").await, Err(Error::AlreadyExists { .. })));
        assert_eq!(content(&store, &path).await, "one");
        assert_eq!(std::fs::read_dir(folder.path().join("a/b")).unwrap().count(), 1, "nothing else is left");
    }

    #[tokio::test]
    async fn an_upload_in_pieces_is_on_the_disk_when_it_is_complete() {
        let (folder, path, noted, store) = store();
        let mut upload = store.put_multipart(&path).await.unwrap();
        upload.put_part("one ".into()).await.unwrap();
        upload.put_part("two".into()).await.unwrap();
        assert!(noted.take().is_empty());
        upload.complete().await.unwrap();
        let names: Vec<_> = noted.take().into_iter().map(|(path, _)| path).collect();
        assert_eq!(names[..2], [folder.path().join("a/b/object"), folder.path().join("a/b")]);
        assert_eq!(content(&store, &path).await, "one two");
    }

    #[tokio::test]
    async fn waiting_is_counted() {
        let (_folder, path, _, _) = store();
        let io = Arc::new(IoCounters::new());
        let store = DurableStore::new(Arc::new(LocalFileSystem::new()), Arc::clone(&io));
        store.put(&path, "one".into()).await.unwrap();
        assert!(io.snapshot().syncs > 3);
    }
}
