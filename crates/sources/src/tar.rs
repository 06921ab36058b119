//! The tar format as far as WebDataset uses it: members with long names, checksums checked.
//!
//! The `tar` crate is the reference of the tests and not the parser: its `Header` compares no checksums, drops the high bytes
//! of a binary size where this parser gives an error, and splits extended headers at line ends instead of by their lengths.

use std::borrow::Cow;

use caju_types::{Error, Result};

use crate::caches::RecordStart;
use crate::record_scan::{Progress, RecordScan, read_window};

/// Everything in a tar file comes in blocks of this size.
pub(crate) const BLOCK: usize = 512;

/// Bytes of a member's content, with its padding.
pub(crate) fn padded(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(BLOCK as u64)
}

/// What a header block says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A block of zeros: the end of the archive.
    End,
    /// A header that says more about the next member; hand its content to [`Names::extension`].
    Extension { kind: u8, size: u64 },
    /// A member.
    Member { name: String, size: u64, regular: bool },
    /// A member whose bytes the archive does not hold as they are: a reader would lose rows or bytes.
    Unreadable { name: String, kind: Unreadable },
}

/// Members that the archive must be written without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    HardLink,
    SymbolicLink,
    Sparse,
    /// The remainder of a file that begins in another archive.
    Continuation,
    /// A global header says what only the header of a member should.
    Global,
    /// A member of an unknown type, which may be a file.
    Type(u8),
}

impl Unreadable {
    /// The error of such a member. `at` is the offset of its first header.
    pub(crate) fn error(self, url: &str, at: u64, unpacked: &str, name: &str) -> Error {
        let (what, way_out): (Cow<'_, str>, _) = match self {
            Self::HardLink => ("a hard link".into(), "without links: `tar --hard-dereference`"),
            Self::SymbolicLink => ("a symbolic link".into(), "without links: `tar --dereference`"),
            Self::Sparse => ("a sparse file".into(), "without `tar --sparse`"),
            Self::Continuation => {
                ("the remainder of a file in another volume".into(), "without `tar --multi-volume`")
            }
            Self::Global => {
                ("described by a global header that names or sizes files".into(), "with `tar --format=gnu`")
            }
            Self::Type(flag) => {
                (format!("of the type `{}`", flag.escape_ascii()).into(), "with `tar --format=gnu`")
            }
        };
        Error::invalid(format!(
            "{url}: the member `{name}` at byte {at}{unpacked} is {what}, which is not supported; write the archive {way_out}"
        ))
    }
}

/// Reads headers; remembers what extension headers say about the next member.
#[derive(Debug, Default)]
pub(crate) struct Names {
    name: Option<String>,
    size: Option<u64>,
    /// The extended headers say that the member cannot be read. The own name of a sparse one is made up.
    unreadable: Option<Unreadable>,
    sparse_name: Option<String>,
}

/// The longest extension header in bytes; a longer one counts as damage.
pub(crate) const MAX_EXTENSION: u64 = 1 << 20;

impl Names {
    /// Reads a header block.
    pub(crate) fn header(&mut self, block: &[u8; BLOCK]) -> Result<Entry, &'static str> {
        if block.iter().all(|b| *b == 0) {
            return match self.name.is_some() || self.size.is_some() || self.unreadable.is_some() {
                true => Err("its extension headers describe a member that does not follow"),
                false => Ok(Entry::End),
            };
        }
        let stored = number(&block[148..156]).ok_or("its header has no checksum")?;
        let sum: u64 = block
            .iter()
            .enumerate()
            .map(|(i, &b)| if (148..156).contains(&i) { 32 } else { u64::from(b) })
            .sum();
        if sum != stored {
            return Err("the checksum of its header is wrong");
        }
        let size = number(&block[124..136]).ok_or("its header has no valid size")?;
        let kind = block[156];
        if matches!(kind, b'x' | b'g' | b'L' | b'K') {
            if size > MAX_EXTENSION {
                return Err("it has an extension header of over 1 MiB");
            }
            return Ok(Entry::Extension { kind, size });
        }
        let name = match self.name.take() {
            Some(name) => name,
            None => plain_name(block),
        };
        let sparse_name = self.sparse_name.take();
        let by_type = match kind {
            0 | b'0' | b'7' => None,
            // Devices, pipes and folders, the label of a volume, and the names of the files in a folder: no content of files.
            b'3'..=b'6' | b'V' | b'D' => None,
            b'S' => Some(Unreadable::Sparse),
            b'1' => Some(Unreadable::HardLink),
            b'2' => Some(Unreadable::SymbolicLink),
            b'M' => Some(Unreadable::Continuation),
            flag => Some(Unreadable::Type(flag)),
        };
        if let Some(kind) = self.unreadable.take().or(by_type) {
            return Ok(Entry::Unreadable { name: sparse_name.unwrap_or(name), kind });
        }
        let regular = matches!(kind, 0 | b'0' | b'7');
        // Folders and devices have no content, whatever the size field says.
        let own = if matches!(kind, b'3'..=b'6') { 0 } else { size };
        let size = self.size.take().unwrap_or(own);
        Ok(Entry::Member { name, size, regular })
    }

    /// Takes the content of an extension header.
    pub(crate) fn extension(&mut self, kind: u8, content: &[u8]) -> Result<(), &'static str> {
        match kind {
            b'L' => self.name = Some(text(content)),
            b'x' | b'g' => {
                let mut rest = content;
                while !rest.is_empty() && rest[0] != 0 {
                    let (key, value, next) = pax_record(rest).ok_or("it has a damaged extension header")?;
                    self.pax_value(kind == b'g', key, value)?;
                    rest = next;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn pax_value(&mut self, is_global: bool, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"path" | b"size" if is_global => self.unreadable = Some(Unreadable::Global),
            b"path" => self.name = Some(utf8(value)?.to_owned()),
            b"size" => {
                let n = std::str::from_utf8(value).ok().and_then(|s| s.parse().ok());
                self.size = Some(n.ok_or("it has a damaged extension header")?);
            }
            b"GNU.volume.filename" | b"GNU.volume.size" | b"GNU.volume.offset" => {
                self.unreadable = Some(Unreadable::Continuation);
            }
            b"SUN.holesdata" | b"SCHILY.realsize" => self.unreadable = Some(Unreadable::Sparse),
            key if key.starts_with(b"GNU.sparse.") => {
                self.unreadable = Some(Unreadable::Sparse);
                if key == b"GNU.sparse.name" {
                    self.sparse_name = Some(utf8(value)?.to_owned());
                }
            }
            // Values of other keys, such as extended attributes, may be binary.
            _ => {}
        }
        Ok(())
    }
}

/// A pax value, which the standard defines as UTF-8.
fn utf8(value: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(value).map_err(|_| "it has an extension header that is not UTF-8")
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn pax_record(rest: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = rest.iter().position(|b| *b == b' ')?;
    let len: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let (record, next) = rest.split_at_checked(len)?;
    let body = record.get(space + 1..len.checked_sub(1)?)?;
    let eq = body.iter().position(|b| *b == b'=')?;
    Some((&body[..eq], &body[eq + 1..], next))
}

/// Text up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn plain_name(block: &[u8; BLOCK]) -> String {
    let name = text(&block[..100]);
    if &block[257..262] == b"ustar" && block[262] == 0 {
        let prefix = text(&block[345..500]);
        if !prefix.is_empty() {
            return format!("{prefix}/{name}");
        }
    }
    name
}

/// An octal number, or a binary one with the top bit of its first byte set.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let mut n = u64::from(field[0] & 0x7f);
        for &b in &field[1..] {
            n = n.checked_mul(256)?.checked_add(b.into())?;
        }
        return Some(n);
    }
    let digits = field.iter().copied().skip_while(|b| *b == b' ').take_while(|b| !matches!(b, 0 | b' '));
    let mut n = 0u64;
    for d in digits {
        if !(b'0'..=b'7').contains(&d) {
            return None;
        }
        n = n.checked_mul(8)?.checked_add(u64::from(d - b'0'))?;
    }
    Some(n)
}

/// A sample's key and the member's column: the name up to the first dot of its last part, and the rest in
/// lower case. None for names that belong to no sample.
pub(crate) fn key_and_extension(name: &str) -> Option<(&str, String)> {
    let base = name.rfind('/').map_or(0, |i| i + 1);
    let dot = base + name[base..].find('.')?;
    if dot == base || dot + 1 == name.len() {
        return None;
    }
    Some((name[..dot].trim_start_matches("./"), name[dot + 1..].to_ascii_lowercase()))
}

/// A scan for the first sample that starts at or after a file offset.
pub(crate) struct SampleScan {
    pub(crate) url: String,
    pub(crate) local: bool,
    pub(crate) size: u64,
    pub(crate) target: u64,
    /// The next block to scan, and the number of samples in front of it.
    here: RecordStart,
    /// Where the member starts whose headers are being read.
    member: Option<u64>,
    names: Names,
    key: Option<String>,
    last: u64,
}

impl SampleScan {
    pub(crate) fn new(url: String, local: bool, size: u64, target: u64, from: RecordStart) -> Self {
        Self {
            url,
            local,
            size,
            target,
            here: from,
            member: None,
            names: Names::default(),
            key: None,
            last: 0,
        }
    }

    fn end(&self) -> Progress {
        Progress::Done(RecordStart { at: self.size, record: self.here.record })
    }
}

impl RecordScan for SampleScan {
    fn step(&mut self, at: u64, bytes: &[u8]) -> Result<Progress> {
        loop {
            let pos = self.here.at;
            // The reader of the split reports truncation and damage.
            if pos + BLOCK as u64 > self.size {
                return Ok(self.end());
            }
            let rest = pos.checked_sub(at).and_then(|o| bytes.get(usize::try_from(o).ok()?..)).unwrap_or(&[]);
            let need = |n: u64, last: u64| {
                let n = read_window(self.local, n, last).max(n).min(self.size - pos);
                Progress::Need(pos..pos + n)
            };
            let Some(block) = rest.first_chunk::<BLOCK>() else { return Ok(need(BLOCK as u64, self.last)) };
            let member = *self.member.get_or_insert(pos);
            let url = &self.url;
            let bad = |why: &str| Error::data_loss(format!("{url}: the member at byte {member}: {why}"));
            let entry = self.names.header(block).map_err(bad)?;
            let (size, found) = match entry {
                Entry::End => return Ok(self.end()),
                Entry::Extension { kind, size } => {
                    let Some(content) = rest.get(BLOCK..BLOCK + usize::try_from(size).unwrap_or(usize::MAX))
                    else {
                        if pos + BLOCK as u64 + size > self.size {
                            return Ok(self.end());
                        }
                        return Ok(need(BLOCK as u64 + size, self.last));
                    };
                    self.names.extension(kind, content).map_err(bad)?;
                    (size, None)
                }
                Entry::Member { name, size, regular } => {
                    self.member = None;
                    let key = key_and_extension(&name).filter(|_| regular).map(|(key, _)| key.to_string());
                    self.last = size;
                    (size, key)
                }
                Entry::Unreadable { name, kind } => return Err(kind.error(url, member, "", &name)),
            };
            if let Some(key) = found
                && self.key.as_ref() != Some(&key)
            {
                if member >= self.target {
                    return Ok(Progress::Done(RecordStart { at: member, record: self.here.record }));
                }
                self.here.record += 1;
                self.key = Some(key);
            }
            let next = padded(size).and_then(|n| pos.checked_add(n)?.checked_add(BLOCK as u64));
            match next {
                Some(next) if next <= self.size => self.here.at = next,
                _ => return Ok(self.end()),
            }
        }
    }
}

#[cfg(test)]
#[path = "tar_tests.rs"]
mod tests;
