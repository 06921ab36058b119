//! Direct access to the files of a local root, past the object store's trait.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path as FilePath, PathBuf};

use arrow_buffer::MutableBuffer;
use bytes::Bytes;
use caju_runtime::MappedFile;
use caju_runtime::stores::open_file;
use object_store::path::Path;

use super::{Fetched, Listed};

/// Properties of a local root's folder.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Folder {
    /// Whether its files can be mapped into memory: whether they are on a file system of this host.
    pub(super) is_mappable: bool,
    /// Whether it has a save: written objects must survive a power failure.
    pub(super) is_save: bool,
}

/// Inspects the folder of a root.
pub(super) async fn inspect(folder: PathBuf) -> Folder {
    let inspect = move || Folder {
        is_mappable: MappedFile::is_supported_below(&folder),
        is_save: folder.join(crate::layout::SAVE_NAME).is_file(),
    };
    caju_runtime::blocking("inspecting a cache root", inspect).await.unwrap_or_default()
}

/// Reads consecutive pieces of a file. Pieces beyond its end are short or empty. `InvalidData` if it is no regular file.
/// Blocking.
pub(super) fn read_pieces(path: &FilePath, start: u64, lengths: &[u64]) -> io::Result<Fetched> {
    let file = open_file(path)?;
    let object_bytes = file.metadata()?.len();
    let (mut pieces, mut at) = (Vec::with_capacity(lengths.len()), start);
    for length in lengths {
        // The file bounds the allocation: a record may claim any length.
        let there = object_bytes.saturating_sub(at).min(*length);
        let there = usize::try_from(there).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        pieces.push(read_piece(&file, at, there)?);
        at = at.saturating_add(*length);
    }
    Ok(Fetched { pieces, object_bytes })
}

fn read_piece(file: &File, at: u64, length: usize) -> io::Result<Bytes> {
    // From the allocator, not from recycled buffers: the memory tier keeps the block.
    let mut piece = MutableBuffer::from_len_zeroed(length);
    let mut have = 0;
    while have < length {
        match file.read_at(&mut piece.as_slice_mut()[have..], at + have as u64) {
            // The file shrank since its length was read.
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    piece.truncate(have);
    Ok(aligned_bytes(piece))
}

/// Adds the incomplete files below a folder to `found`. A folder that cannot be read has none.
pub(super) fn partial_files_below(
    folder: &FilePath,
    prefix: &Path,
    depth: u32,
    found: &mut Vec<(PathBuf, Listed)>,
) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let (Some(name), Ok(metadata)) = (name.to_str(), entry.metadata()) else { continue };
        if metadata.is_dir() {
            if depth > 0 {
                partial_files_below(&entry.path(), &prefix.clone().join(name), depth - 1, found);
            }
        } else if name.rsplit_once('#').is_some_and(|(_, n)| n.bytes().all(|b| b.is_ascii_digit())) {
            let (bytes, mtime_ns, _) = caju_runtime::stores::local_version(&metadata);
            let path = Path::parse(format!("{prefix}/{name}")).unwrap_or_else(|_| prefix.clone().join(name));
            found.push((entry.path(), Listed { path, bytes, modified_ms: mtime_ns / 1_000_000, etag: None }));
        }
    }
}

/// Converts a buffer to `Bytes` without a copy. The alignment stays.
pub(super) fn aligned_bytes(buffer: MutableBuffer) -> Bytes {
    struct Owner(arrow_buffer::Buffer);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            self.0.as_slice()
        }
    }
    Bytes::from_owner(Owner(buffer.into()))
}
