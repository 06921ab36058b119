//! Local files that are on the disk when they are said to be written.
//!
//! object_store's local store leaves it to the kernel when the bytes of a file, and its name, reach the disk: after a
//! loss of power a file may be empty or gone that was written minutes before. For a cache that is fine, since what is
//! damaged there is computed again. For rows that were saved it is not.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use parking_lot::Mutex;

use super::IoCounters;

/// Numbers names of files that are being written, which no listing shows (`NAME#123`).
static STAGED: AtomicU64 = AtomicU64::new(0);

/// A local store whose writes wait for the disk. When a write has returned, the file's bytes, its name and the folders
/// above it survive a loss of power; an object that is written at once is whole or not there at any moment. So objects
/// that are written one after another reach the disk in that order.
#[derive(Debug, Clone)]
pub struct DurableStore {
    inner: Arc<dyn ObjectStore>,
    folders: Arc<Folders>,
}

/// The folders whose own names are known to be on the disk, and what asks the disk.
#[derive(Debug)]
struct Folders {
    named: Mutex<HashSet<PathBuf>>,
    disk: Arc<dyn Disk>,
}

/// What waits for the disk.
trait Disk: fmt::Debug + Send + Sync {
    /// Waits for the bytes of a file.
    fn sync_file(&self, path: &FilePath, file: &File) -> io::Result<()>;

    /// Waits for the names in a folder.
    fn sync_folder(&self, path: &FilePath) -> io::Result<()>;
}

/// The machine's disk. Counts how often it is waited for.
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
            // A folder that may not be read was not made here, and some file systems know no waiting for folders.
            Err(e) if is_unanswerable(&e) => Ok(()),
            other => other,
        }
    }
}

fn is_unanswerable(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

impl DurableStore {
    /// `inner` has to be the store of the local file system, whose paths are files' without the slash in front. Waiting
    /// is counted in `io`.
    pub fn new(inner: Arc<dyn ObjectStore>, io: Arc<IoCounters>) -> Self {
        Self::with(inner, Arc::new(System(io)))
    }

    fn with(inner: Arc<dyn ObjectStore>, disk: Arc<dyn Disk>) -> Self {
        Self { inner, folders: Arc::new(Folders { named: Mutex::default(), disk }) }
    }
}

impl Folders {
    /// Waits until a name in a folder is on the disk, with all folders above it.
    fn sync_name(&self, file: &FilePath) -> io::Result<()> {
        for (i, folder) in file.ancestors().skip(1).filter(|f| !f.as_os_str().is_empty()).enumerate() {
            // The folder of the file has a new name. Those above it had, when they were first met.
            if i > 0 && self.named.lock().contains(folder) {
                break;
            }
            self.disk.sync_folder(folder)?;
            self.named.lock().insert(folder.to_path_buf());
        }
        Ok(())
    }

    /// Writes a file under another name, waits for its bytes, and gives it its own name.
    fn put(&self, path: &FilePath, payload: &PutPayload, only_new: bool) -> io::Result<()> {
        let staged = self.stage(path, payload)?;
        let named = match only_new {
            true => std::fs::hard_link(&staged, path),
            false => std::fs::rename(&staged, path),
        };
        if only_new || named.is_err() {
            // Its second name; if it stays, the collection removes it.
            drop(std::fs::remove_file(&staged));
        }
        named?;
        self.sync_name(path)
    }

    fn stage(&self, path: &FilePath, payload: &PutPayload) -> io::Result<PathBuf> {
        loop {
            let mut staged = path.as_os_str().to_owned();
            staged.push(format!("#{}{}", std::process::id(), STAGED.fetch_add(1, Ordering::Relaxed)));
            let staged = PathBuf::from(staged);
            let mut file = match File::create_new(&staged) {
                Ok(file) => file,
                // A leftover of an earlier process.
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

    /// Waits for a file that is there already.
    fn settle(&self, path: &FilePath) -> io::Result<()> {
        self.disk.sync_file(path, &File::open(path)?)?;
        self.sync_name(path)
    }
}

fn file_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("/{path}"))
}

/// Does something with a file on a thread that may wait.
async fn blocking(
    path: &Path,
    folders: &Arc<Folders>,
    work: impl FnOnce(&Folders, &FilePath) -> io::Result<()> + Send + 'static,
) -> Result<()> {
    let (file, folders) = (file_of(path), Arc::clone(folders));
    let done = crate::blocking("writing a file for good", move || work(&folders, &file)).await;
    let done = done.map_err(|e| Error::Generic { store: "DurableStore", source: e.into() })?;
    done.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { path: path.to_string(), source: e.into() },
        io::ErrorKind::NotFound => Error::NotFound { path: path.to_string(), source: e.into() },
        _ => Error::Generic { store: "DurableStore", source: e.into() },
    })
}

impl fmt::Display for DurableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DurableStore({})", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for DurableStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let only_new = match opts.mode {
            PutMode::Create => true,
            PutMode::Overwrite => false,
            // The local store has none: it says so.
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

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await?;
        blocking(to, &self.folders, Folders::settle).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await?;
        blocking(to, &self.folders, Folders::settle).await
    }
}

/// An upload in pieces, which waits for the disk at its end.
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
        blocking(&self.path, &self.folders, Folders::settle).await?;
        Ok(result)
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::local::LocalFileSystem;

    use super::*;

    /// Notes what was waited for, and whether the object was there by then.
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
    async fn bytes_come_before_their_name_and_the_name_before_its_folders() {
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
