//! Samples exactly once however the archive is cut; long names; damage.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use caju_pipeline::FileFormat;
use caju_types::ErrorKind;
use object_store::ObjectStoreExt;
use proptest::prelude::*;

use super::*;
use crate::test_util::*;

fn header(name: &[u8], size: usize, kind: u8) -> Vec<u8> {
    let mut h = vec![0u8; 512];
    h[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
    h[100..108].copy_from_slice(b"0000644\0");
    h[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    h[156] = kind;
    h[257..265].copy_from_slice(b"ustar\x0000");
    h[148..156].copy_from_slice(b"        ");
    let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
    h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    h
}

fn content(data: &[u8], out: &mut Vec<u8>) {
    out.extend(data);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn member(name: &str, data: &[u8], long: u8, out: &mut Vec<u8>) {
    match long {
        1 => {
            out.extend(header(b"././@LongLink", name.len() + 1, b'L'));
            content(&[name.as_bytes(), b"\0"].concat(), out);
        }
        2 => {
            let body = format!(" path={name}\n");
            let mut len = body.len() + 1;
            while len.to_string().len() + body.len() != len {
                len = len.to_string().len() + body.len();
            }
            let body = format!("{len}{body}");
            out.extend(header(b"PaxHeader", body.len(), b'x'));
            content(body.as_bytes(), out);
        }
        _ => {}
    }
    let short = if long == 0 { name.as_bytes() } else { &b"cut"[..] };
    out.extend(header(short, data.len(), b'0'));
    content(data, out);
}

type Members = Vec<(String, Vec<u8>)>;

/// An archive of samples, with a folder entry here and there.
fn archive(samples: &[Members], long: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, members) in samples.iter().enumerate() {
        if i % 3 == 1 {
            out.extend(header(b"dir/", 0, b'5'));
        }
        for (name, data) in members {
            member(name, data, long, &mut out);
        }
    }
    out.extend([0; 1024]);
    out
}

fn format(columns: Option<&[&str]>) -> FileFormat {
    let columns = columns.map(|c| c.iter().map(ToString::to_string).collect());
    FileFormat::WebDataset { compression: Compression::Auto, columns }
}

type Row = (String, Option<Vec<u8>>, Option<Vec<u8>>);

fn samples_of(batch: &RecordBatch) -> Vec<Row> {
    let keys = batch.column(0).as_string::<i32>();
    let column = |name: &str, row| {
        let a = batch.column_by_name(name)?.as_binary::<i32>();
        a.is_valid(row).then(|| a.value(row).to_vec())
    };
    (0..batch.num_rows())
        .map(|r| (keys.value(r).to_string(), column("jpg", r), column("seg.png", r)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn splits_partition_the_samples(
        sizes in prop::collection::vec((0usize..2000, prop::option::of(0usize..600)), 1..25),
        split_bytes in 300u64..8000, long in 0u8..3, local in any::<bool>(),
    ) {
        run(async {
            let ctx = context();
            let want: Vec<_> = sizes.iter().enumerate().map(|(i, (a, b))| {
                // A sample's own content may look like an archive.
                let nested = archive(&[vec![(format!("{i}.jpg"), vec![1; *a])]], 0);
                let data = if i % 4 == 0 { nested } else { vec![i as u8; *a] };
                (format!("dir/{i:06}"), Some(data), b.map(|n| vec![7; n]))
            }).collect();
            let samples: Vec<Members> = want.iter().map(|(k, a, b)| {
                let mut m = vec![(format!("./{k}.JPG"), a.clone().unwrap())];
                if let Some(b) = b { m.push((format!("./{k}.seg.png"), b.clone())); }
                m
            }).collect();
            let dir = tempfile::tempdir().unwrap();
            let url = if local { format!("file://{}/a.tar", dir.path().display()) } else { format!("{}/a.tar", fresh()) };
            put(&ctx, &url, archive(&samples, long)).await;
            let mut def = def(format(Some(&["jpg", "seg.png"])), &url);
            def.split_bytes = split_bytes;
            let all = all_rows(&ctx, &def, &small(7, 3000)).await.unwrap().unwrap();
            assert_eq!(samples_of(&all), want);
        });
    }
}

#[tokio::test]
async fn columns_are_found_and_strangers_refused() {
    let ctx = context();
    let url = format!("{}/a.tar", fresh());
    let one = |k: &str, e: &str| (format!("{k}.{e}"), vec![1, 2]);
    let mut samples: Vec<Members> =
        (0..200).map(|i| vec![one(&format!("{i}"), "jpg"), one(&format!("{i}"), "cls")]).collect();
    put(&ctx, &url, archive(&samples, 0)).await;
    let source = open(&ctx, &def(format(None), &url)).await.unwrap();
    let names: Vec<_> = source.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["__key__", "jpg", "cls"]);
    let options = ReadOptions { projection: Some(vec![0, 2]), ..ReadOptions::default() };
    let all = source_rows(&source, &options).await.unwrap().unwrap();
    assert_eq!((all.num_rows(), all.num_columns()), (200, 2));
    samples.push(vec![one("x", "jpg"), one("x", "jpq")]);
    samples.push(vec![one("y", "jpg"), one("y", "jpg")]);
    put(&ctx, &url, archive(&samples, 0)).await;
    let e = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap_err();
    let want = format!(
        "{url}: `x.jpq`: the first samples have no `.jpq`; did you mean `jpg`?; name the extensions to read in `columns`"
    );
    assert_eq!((e.kind(), e.message()), (ErrorKind::InvalidArgument, want.as_str()));
    let (skip, errors) = skips();
    let options = ReadOptions { skip: Some(skip), ..ReadOptions::default() };
    let all = all_rows(&ctx, &def(format(None), &url), &options).await.unwrap().unwrap();
    assert_eq!((all.num_rows(), errors.lock().len()), (200, 2));
}

#[tokio::test]
async fn a_misspelt_extension_is_refused() {
    let ctx = context();
    let url = format!("{}/a.tar", fresh());
    let one = |k: &str, e: &str| (format!("{k}.{e}"), vec![1, 2]);
    put(&ctx, &url, archive(&[vec![one("a", "jpeg"), one("a", "cls")]], 0)).await;
    let e = open(&ctx, &def(format(Some(&["jpg", "cls"])), &url)).await.map(drop).unwrap_err();
    let want = format!(
        "{url}: no row at its beginning has `jpg`, which `columns` names; did you mean `jpeg`? It has: jpeg, cls. If samples \
         have the one or the other, name both"
    );
    assert_eq!((e.kind(), e.message()), (ErrorKind::InvalidArgument, want.as_str()));
    // Samples that come later may have it.
    let source = open(&ctx, &def(format(Some(&["cls", "txt"])), &url)).await.unwrap();
    assert_eq!(source_rows(&source, &ReadOptions::default()).await.unwrap().unwrap().num_columns(), 3);
}

#[tokio::test]
async fn compressed_and_damaged_archives() {
    use std::io::Write;
    let samples: Vec<Members> = (0..20).map(|i| vec![(format!("{i}.jpg"), vec![i as u8; 700])]).collect();
    let data = archive(&samples, 0);
    let ctx = context();
    let url = format!("{}/a.tar.gz", fresh());
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&data).unwrap();
    put(&ctx, &url, gz.finish().unwrap()).await;
    let all = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(all.num_rows(), 20);

    let url = format!("{}/a.tar", fresh());
    put(&ctx, &url, data[..1536 * 5 + 600].to_vec()).await;
    let e = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap_err();
    let want = format!(
        "{url}: the member at byte 7168: the file ends inside it; it is truncated or is still being written"
    );
    assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, want.as_str()));
    // Within the padding of a member: its content is whole, but what came after it is missing.
    put(&ctx, &url, data[..1536 * 2 + 512 + 512 + 190].to_vec()).await;
    let e = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
    assert!(e.message().contains("the file ends inside it"), "{e}");
    let mut bad = data.clone();
    bad[1536 * 2 + 512 + 3] ^= 1;
    put(&ctx, &url, bad).await;
    let e = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap_err();
    assert_eq!(e.message(), format!("{url}: the member at byte 3584: the checksum of its header is wrong"));
    put(&ctx, &url, "<html>".repeat(200)).await;
    let e = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap_err();
    assert!(e.message().ends_with("it is damaged, is compressed, or is no tar file"), "{e}");
}

#[tokio::test]
async fn a_file_of_an_archive_above_the_largest_record_names_the_option() {
    let ctx = context_of_records(1024);
    let url = format!("{}/a.tar", fresh());
    let samples = [vec![("0.jpg".to_string(), vec![0; 100])], vec![("1.jpg".to_string(), vec![1; 3000])]];
    put(&ctx, &url, archive(&samples, 0)).await;
    let e = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap_err();
    let what = "the member at byte 1536: it has 3000 bytes, more than the 1024 allowed";
    assert_names_max_record(&e, &url, what);
}

/// An archive ends with its end mark, and only zeros follow.
#[tokio::test]
async fn an_archive_without_its_end_or_with_more_behind_it_is_an_error() {
    use std::io::Write;
    let samples: Vec<Members> = (0..20u8).map(|i| vec![(format!("{i}.jpg"), vec![i; 700])]).collect();
    let data = archive(&samples, 0);
    let member = 512 + 1024;
    // Each `dir/` entry takes a header of its own: sample 9 is behind three of them.
    let cut = 10 * member + 3 * 512;
    let ctx = context();
    let refused = async |name: &str, bytes: Vec<u8>, split_bytes: u64| {
        let url = format!("{}/{name}", fresh());
        put(&ctx, &url, bytes).await;
        let mut def = def(format(None), &url);
        def.split_bytes = split_bytes;
        let e = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss, "{name}: {e}");
        assert!(e.message().starts_with(&url), "{e}");
        e.message().to_owned()
    };
    for split_bytes in [4000, 1 << 20] {
        let e = refused("cut.tar", data[..cut].to_vec(), split_bytes).await;
        assert!(e.contains("without the archive's end mark"), "{e}");
        let e = refused("two.tar", [&data[..], &data[..]].concat(), split_bytes).await;
        assert!(e.contains("behind the archive's end mark"), "{e}");
        let mut zeros = data.clone();
        zeros[cut..cut + 512].fill(0);
        let e = refused("zeros.tar", zeros, split_bytes).await;
        assert!(e.contains("behind the archive's end mark"), "{e}");
    }
    // The checksum of a compressed file is behind all padding, so the padding is read, too.
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    gz.write_all(&data).unwrap();
    gz.write_all(&vec![0; 3 << 20]).unwrap();
    let mut gz = gz.finish().unwrap();
    let at = gz.windows(700).position(|w| w.iter().all(|b| *b == 9)).unwrap();
    gz[at + 5] ^= 1;
    refused("flipped.tar.gz", gz, 1 << 20).await;
}

/// One member of `kind`, with the records of a pax header in front of it, a global one for some.
fn unreadable(name: &str, kind: u8, pax: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    if !pax.is_empty() {
        let record = |(key, value): &(&str, &str)| {
            let body = format!(" {key}={value}\n");
            // All records of the test take two digits.
            format!("{}{body}", body.len() + 2)
        };
        let body: String = pax.iter().map(record).collect();
        let global = pax.iter().any(|(key, _)| ["path", "GNU.volume.filename"].contains(key));
        out.extend(header(b"PaxHeader", body.len(), if global { b'g' } else { b'x' }));
        content(body.as_bytes(), &mut out);
    }
    let data: &[u8] = if kind == b'0' { b"1\n0\n3\nabc" } else { b"" };
    out.extend(header(name.as_bytes(), data.len(), kind));
    content(data, &mut out);
    out
}

/// A link holds no content of its own, and a sparse file holds its content in pieces.
#[tokio::test]
async fn links_and_sparse_members_are_errors_with_the_way_out() {
    use std::io::Write;
    let samples = |n: std::ops::Range<u8>| -> Vec<Members> {
        n.map(|i| vec![(format!("{i}.jpg"), vec![i; 700])]).collect()
    };
    let first = archive(&samples(0..4), 0);
    let first = &first[..first.len() - 1024];
    let sparse_1_0 = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "x.jpg")];
    let sparse_0_1 = [("GNU.sparse.size", "3"), ("GNU.sparse.map", "0,3")];
    let (holes, real_size) = ([("SUN.holesdata", " 0 3")], [("SCHILY.realsize", "3")]);
    let volume = [("GNU.volume.filename", "x.jpg"), ("GNU.volume.offset", "3")];
    let in_volume = "the remainder of a file in another volume";
    let gnu = "`tar --format=gnu`";
    for (member, what, way_out) in [
        (unreadable("x.jpg", b'1', &[]), "a hard link", "`tar --hard-dereference`"),
        (unreadable("x.jpg", b'2', &[]), "a symbolic link", "`tar --dereference`"),
        (unreadable("x.jpg", b'S', &[]), "a sparse file", "without `tar --sparse`"),
        (unreadable("GNUSparseFile.1/0.jpg", b'0', &sparse_1_0), "a sparse file", "without `tar --sparse`"),
        (unreadable("x.jpg", b'0', &sparse_0_1), "a sparse file", "without `tar --sparse`"),
        (unreadable("x.jpg", b'0', &holes), "a sparse file", "without `tar --sparse`"),
        (unreadable("x.jpg", b'0', &real_size), "a sparse file", "without `tar --sparse`"),
        (unreadable("x.jpg", b'M', &[]), in_volume, "without `tar --multi-volume`"),
        (unreadable("x.jpg", b'0', &volume), in_volume, "without `tar --multi-volume`"),
        (unreadable("x.jpg", b'0', &[("path", "xxxxx")]), "described by a global header", gnu),
        (unreadable("x.jpg", b'N', &[]), "of the type `N`", gnu),
        (unreadable("x.jpg", b'X', &[]), "of the type `X`", gnu),
        (unreadable("x.jpg", b'\n', &[]), "of the type `\\n`", gnu),
    ] {
        let data = [first, &member, &archive(&samples(5..9), 0)].concat();
        let ctx = context();
        let refused = async |url: &str, format: FileFormat, split_bytes: u64, unpacked: &str| {
            let mut def = def(format, url);
            def.split_bytes = split_bytes;
            let e = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap_err();
            let at = first.len();
            let want = format!("{url}: the member `x.jpg` at byte {at}{unpacked} is {what}");
            assert!(e.message().contains(", which is not supported; write the archive "), "{e}");
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            assert!(e.message().starts_with(&want) && e.message().ends_with(way_out), "{e}");
        };
        let url = format!("{}/a.tar", fresh());
        put(&ctx, &url, data.clone()).await;
        for split_bytes in [2000, 1 << 20] {
            refused(&url, format(Some(&["jpg"])), split_bytes, "").await;
        }
        refused(&url, format(None), 1 << 20, "").await;
        let url = format!("{}/a.tar.gz", fresh());
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&data).unwrap();
        put(&ctx, &url, gz.finish().unwrap()).await;
        refused(&url, format(Some(&["jpg"])), 1 << 20, " of the decompressed file").await;
    }
}

/// The label of a volume and the list of a folder hold no files.
#[tokio::test]
async fn labels_and_lists_of_folders_are_skipped() {
    let mut data = header(b"label.jpg", 0, b'V');
    data.extend(header(b"dir.jpg", 8, b'D'));
    content(b"Yx.jpg\0\0", &mut data);
    data.extend(archive(&[vec![("0.jpg".to_owned(), vec![1; 700])]], 0));
    let ctx = context();
    let url = format!("{}/a.tar", fresh());
    put(&ctx, &url, data).await;
    let all = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(all.num_rows(), 1);
}

/// An extension header at the end describes a member that is lost.
#[tokio::test]
async fn an_extension_header_without_its_member_is_an_error() {
    let whole = archive(&[vec![("0.jpg".to_owned(), vec![1; 700])]], 0);
    let mut data = whole[..whole.len() - 1024].to_vec();
    let long = [vec![("1.jpg".to_owned(), Vec::new())]];
    data.extend(&archive(&long, 1)[..1024]);
    data.extend([0; 1024]);
    let ctx = context();
    let url = format!("{}/a.tar", fresh());
    put(&ctx, &url, data).await;
    let e = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss);
    assert!(e.message().starts_with(&url) && e.message().contains("a member that does not follow"), "{e}");
}

/// Even an archive without members has an end mark.
#[tokio::test]
async fn an_archive_of_no_bytes_is_an_error_also_behind_others() {
    let ctx = context();
    let folder = fresh();
    put(&ctx, &format!("{folder}/a.tar"), archive(&[vec![("0.jpg".to_owned(), vec![1; 700])]], 0)).await;
    put(&ctx, &format!("{folder}/c.tar"), vec![0; 1024]).await;
    let all = |path: String| {
        let (ctx, columns) = (ctx.clone(), Some(&["jpg"][..]));
        async move { all_rows(&ctx, &def(format(columns), &path), &ReadOptions::default()).await }
    };
    assert_eq!(all(format!("{folder}/*.tar")).await.unwrap().unwrap().num_rows(), 1);
    for empty in ["b.tar", "d.tar"] {
        let url = format!("{folder}/{empty}");
        put(&ctx, &url, Vec::new()).await;
        let (skip, _) = skips();
        let skipping = ReadOptions { skip: Some(skip), ..ReadOptions::default() };
        let of_all = def(format(None), &format!("{folder}/*.tar"));
        for result in [
            all(format!("{folder}/*.tar")).await,
            all(url.clone()).await,
            all_rows(&ctx, &of_all, &skipping).await,
        ] {
            let e = result.unwrap_err();
            let want = format!(
                "{url}: the file has 0 bytes, which is no tar file: the file is truncated or is still being written"
            );
            assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, want.as_str()));
        }
        let at = ctx.stores.resolve(&url).unwrap();
        at.store.delete(&at.path).await.unwrap();
    }
}

#[tokio::test]
async fn folders_and_global_headers_are_skipped() {
    let mut data = header(b"pax_global_header", 15, b'g');
    content(b"15 comment=abc\n", &mut data);
    data.extend(header(b"dir/", 0, b'5'));
    data.extend(archive(&[vec![("0.jpg".to_owned(), vec![1; 700])]], 0));
    let ctx = context();
    let url = format!("{}/a.tar", fresh());
    put(&ctx, &url, data).await;
    let all = all_rows(&ctx, &def(format(None), &url), &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(all.num_rows(), 1);
}

/// Two names that differ were one key, with the picture of one sample and the label of the other.
#[tokio::test]
async fn names_of_samples_that_are_not_utf8_are_bad_rows() {
    let ctx = context();
    let url = format!("{}/a.tar", fresh());
    let mut bytes = Vec::new();
    for name in [&b"lies-mich\xfc"[..], b"a.jpg", b"caf\xe9.jpg", b"caf\xe8.cls", b"b.jpg"] {
        bytes.extend(header(name, 1, b'0'));
        content(b"1", &mut bytes);
    }
    bytes.extend([0; 1024]);
    put(&ctx, &url, bytes).await;
    let def = def(format(Some(&["jpg", "cls"])), &url);
    let e = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.message().contains("at byte 2048 is not UTF-8"), "{e}");
    let (skip, errors) = skips();
    let options = ReadOptions { skip: Some(skip), ..ReadOptions::default() };
    let rows = all_rows(&ctx, &def, &options).await.unwrap().unwrap();
    assert_eq!((rows.num_rows(), errors.lock().len()), (2, 1));
}
