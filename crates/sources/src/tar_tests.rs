//! The headers as the `tar` crate reads them: ours give the same names and sizes, or an error.

use ::tar::{Archive, Builder, EntryType, Header};
use proptest::prelude::*;

use super::*;

/// How a member's header is written.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// POSIX; a long name is split into prefix and name.
    Ustar,
    /// GNU; a long name has a header of its own.
    Gnu,
    /// POSIX with extended headers for name and size.
    Pax,
}

fn archive(members: &[(String, Vec<u8>, Kind)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, content, kind) in members {
        let mut header = if matches!(kind, Kind::Gnu) { Header::new_gnu() } else { Header::new_ustar() };
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(EntryType::Regular);
        let size = content.len().to_string();
        let written = match kind {
            Kind::Gnu => builder.append_data(&mut header, name, content.as_slice()),
            Kind::Ustar if header.set_path(name).is_ok() => {
                header.set_cksum();
                builder.append(&header, content.as_slice())
            }
            _ => {
                let records =
                    [("path", name.as_bytes()), ("size", size.as_bytes()), ("comment", b"c=d".as_ref())];
                builder.append_pax_extensions(records).unwrap();
                header.set_path("short").unwrap();
                header.set_cksum();
                builder.append(&header, content.as_slice())
            }
        };
        written.unwrap();
    }
    builder.into_inner().unwrap()
}

/// Names and sizes of the regular members, by our parser.
fn ours(mut archive: &[u8]) -> Result<Vec<(String, u64)>, &'static str> {
    let (mut names, mut members) = (Names::default(), Vec::new());
    while let Some(block) = archive.first_chunk::<BLOCK>() {
        let size = match names.header(block)? {
            Entry::End => break,
            Entry::Extension { kind, size } => {
                let content = archive[BLOCK..].get(..usize::try_from(size).unwrap()).ok_or("cut off")?;
                names.extension(kind, content)?;
                size
            }
            Entry::Member { name, size, regular } => {
                if regular {
                    members.push((name, size));
                }
                size
            }
            Entry::Unreadable { .. } => return Err("unreadable"),
        };
        let skip = padded(size).and_then(|n| usize::try_from(n).ok()).and_then(|n| n.checked_add(BLOCK));
        archive = skip.and_then(|n| archive.get(n..)).ok_or("cut off")?;
    }
    Ok(members)
}

fn theirs(archive: &[u8]) -> std::io::Result<Vec<(String, u64)>> {
    Archive::new(archive)
        .entries()?
        .map(|entry| {
            let entry = entry?;
            Ok((String::from_utf8_lossy(&entry.path_bytes()).into_owned(), entry.size()))
        })
        .collect()
}

fn member() -> impl Strategy<Value = (String, Vec<u8>, Kind)> {
    let name = prop_oneof!["[a-z]{1,8}\\.[a-z]{1,4}", "([a-zé ]{1,60}/){1,5}[0-9]{1,60}\\.[a-z]{1,4}"];
    let kind = prop::sample::select(&[Kind::Ustar, Kind::Gnu, Kind::Pax][..]);
    (name, prop::collection::vec(any::<u8>(), 0..1200), kind)
}

/// A byte that is not UTF-8 in the name of one file of a sample would make it a sample of its own.
#[test]
fn pax_names_that_are_not_utf_8_are_refused() {
    let good = archive(&[("folder/0001.jpg".to_owned(), vec![1], Kind::Pax)]);
    assert_eq!(ours(&good).unwrap(), [("folder/0001.jpg".to_owned(), 1)]);
    let mut bad = good.clone();
    let at = bad.windows(4).position(|w| w == b"0001").unwrap();
    bad[at] = 0x9b;
    assert_eq!(ours(&bad), Err("it has an extension header that is not UTF-8"));
}

proptest! {
    #[test]
    fn members_read_as_the_tar_crate_reads_them(members in prop::collection::vec(member(), 0..6)) {
        let archive = archive(&members);
        let want: Vec<_> = members.iter().map(|(name, data, _)| (name.clone(), data.len() as u64)).collect();
        prop_assert_eq!(theirs(&archive).unwrap(), want.clone());
        prop_assert_eq!(ours(&archive), Ok(want));
    }

    /// A damaged size with a checksum that fits: the same size, or an error. The `tar` crate drops the high bytes of
    /// a binary size, which here is an error.
    #[test]
    fn damaged_sizes_are_the_same_or_errors(
        size in 0u64..1 << 40,
        damage in prop::collection::vec((0usize..12, prop_oneof![any::<u8>(), b'0'..=b'9', Just(b' ')]), 0..3),
        binary in any::<bool>(),
    ) {
        let mut header = Header::new_ustar();
        header.set_path("0.jpg").unwrap();
        header.set_size(size);
        let block = header.as_mut_bytes();
        if binary {
            block[124..128].copy_from_slice(&[0x80, 0, 0, 0]);
            block[128..136].copy_from_slice(&size.to_be_bytes());
        }
        for (at, byte) in damage {
            block[124 + at] = byte;
        }
        header.set_cksum();
        let ours = Names::default().header(header.as_bytes());
        if let Ok(Entry::Member { size, .. }) = ours && let Ok(theirs) = header.entry_size() {
            prop_assert_eq!(size, theirs);
        }
    }
}
