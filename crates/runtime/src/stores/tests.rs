//! Resolving, listing and counting: the requests of each operation, and the error messages.

#![allow(clippy::unimplemented, reason = "stores in these tests answer only what is asked of them")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use caju_types::{ErrorKind, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use super::*;

fn stores() -> Arc<Stores> {
    Arc::new(Stores::default())
}

async fn keys(stores: &Arc<Stores>, path: &str, ext: &[&str]) -> Result<Vec<String>> {
    let io = Arc::new(IoCounters::new());
    stores.list(path, ext, &io).map_ok(|l| l.url.key).try_collect().await
}

async fn put(stores: &Stores, url: &str, data: &'static str) {
    let at = stores.resolve(url).unwrap();
    at.store.put(&at.path, data.into()).await.unwrap();
}

#[test]
fn urls_are_canonical() {
    for (text, want) in [
        ("/a//b/./c/../d", "file:///a/b/d"),
        ("file:///a/*.csv", "file:///a/*.csv"),
        ("file:///a%20b/c%C3%A9.csv", "file:///a b/cé.csv"),
        ("file:///a/%2e%2e/b", "file:///b"),
        ("file:///50%25.csv", "file:///50%25.csv"),
        ("file:///50%.csv", "file:///50%25.csv"),
        ("/50%20.csv", "file:///50%2520.csv"),
        ("s3://b/50%20.csv", "s3://b/50%20.csv"),
        ("s3a://bucket/k?y#1", "s3://bucket/k?y#1"),
        ("memory:///x", "memory:///x"),
        ("abfss://c@acc.dfs.core.windows.net/k", "az://c@acc.dfs.core.windows.net/k"),
        ("gs://b", "gs://b/"),
    ] {
        let url = StoreUrl::parse(text).unwrap();
        assert_eq!(url.to_string(), want, "{text}");
        assert_eq!(StoreUrl::parse(want).unwrap(), url, "{text}");
    }
    for bad in ["data/x.csv", "s3:///key", "s3://b/../c", "file://host/x", "file:///%ff"] {
        assert_eq!(StoreUrl::parse(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
    }
    let e = stores().resolve("s4://bucket/key").unwrap_err();
    assert!(e.message().contains("did you mean `s3`"), "{e}");
}

#[test]
fn options_are_checked_and_secrets_hidden() {
    let options = |k: &str| [(k.to_string(), "hush".to_string())].into_iter().collect();
    let e = Stores::new(options("aws_acces_key_id"), None).unwrap_err();
    assert_eq!(e.message(), "unknown store option `aws_acces_key_id`; did you mean `aws_access_key_id`?");
    let s = Stores::new(options("AWS_SECRET_ACCESS_KEY"), None).unwrap();
    assert!(!format!("{s:?}").contains("hush"));
}

#[test]
fn allow_is_a_fence() {
    let access = Access { read: vec!["/data".into(), "s3://b/p/".into()], write: vec!["/saves".into()] };
    let s = Stores::new(BTreeMap::new(), Some(access)).unwrap();
    assert!(s.resolve("/data/x").is_ok() && s.resolve("/saves/a/b").is_ok());
    assert!(s.resolve_to_write("/saves/a/b").is_ok());
    for bad in ["/database/x", "/data/../etc/passwd", "/", "memory://x/y", "s3://b/q"] {
        let e = s.resolve(bad).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{bad}");
        assert!(e.message().contains("--allow-read (file:///data, s3://b/p)"), "{e}");
    }
    for readable in ["/data/x", "/data/../saves2", "s3://b/p/q"] {
        let e = s.resolve_to_write(readable).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{readable}");
        assert!(e.message().contains("--allow-write (file:///saves)"), "{e}");
    }
    s.allow_cache("/cache").unwrap();
    assert!(s.resolve_to_write("/cache/v1/x").is_ok() && s.resolve("/cache").is_ok());
    s.allow_cache("s3://elsewhere").unwrap();
    assert!(s.resolve_to_write("/cache/v1/x").is_err());
}

const HASH: &str = "0123456789abcdef0123456789abcdef";

#[tokio::test]
async fn folders_hide_what_caches_and_saves_wrote_into_them() {
    let stores = stores();
    let dir = tempfile::tempdir().unwrap();
    let part = format!("v1/{HASH}/parts/{HASH}-34c915ab28769920.arrow");
    let sealed = r#"{"seal":"0123456789abcdef0123456789abcdef","schema":"caju.listing/v1"}"#;
    for root in ["memory://mixed".to_owned(), dir.path().to_str().unwrap().to_owned()] {
        for (key, content) in [
            ("a.arrow", "x"),
            (&part, "x"),
            (&format!("deep/save/{part}"), "x"),
            (&format!("v1/{HASH}/parts/{HASH}-1.commit"), "x"),
            (&format!("v1/{HASH}/parts/_{HASH}-1-34c915ab28769920.commit"), "x"),
            ("deep/save/v1/b.arrow", "x"),
            (&format!("v1/{HASH}/manifest-00000001.json"), sealed),
            (&format!("v1/{HASH}/uses/6721-18ebc66b6a8a225d-1.json"), sealed),
            (&format!("v1/{HASH}/set.json"), sealed),
            (&format!("v1/{HASH}/pin"), "{}"),
            (&format!("v1/listings/{HASH}.json"), sealed),
            (&format!("v1/plans/{HASH}.json"), sealed),
            ("v1/writers/6721-18ebc66b6a8a225d-1.json", sealed),
            ("deep/save/save.json", sealed),
        ] {
            put(&stores, &format!("{root}/{key}"), content).await;
        }
        let list = async |path: &str, ext: &[&str]| {
            let above = StoreUrl::parse(&root).unwrap().key;
            let found = keys(&stores, &format!("{root}{path}"), ext).await.unwrap();
            let below = |key: &String| key.strip_prefix(&above).unwrap().trim_start_matches('/').to_owned();
            found.iter().map(below).collect::<Vec<_>>()
        };
        let plain = ["a.arrow", "deep/save/v1/b.arrow"];
        assert_eq!(list("", &["arrow"]).await, plain);
        assert_eq!(list("", &["arrow", "json"]).await, plain);
        assert_eq!(list("/**", &[]).await, plain);
        // A path that names the parts lists them: they are ordinary files.
        assert_eq!(list(&format!("/v1/{HASH}/parts/*.arrow"), &[]).await, [part.as_str()]);
    }
}

#[tokio::test]
async fn a_users_files_in_folders_named_as_those_of_a_cache_are_read() {
    let stores = stores();
    let dir = tempfile::tempdir().unwrap();
    let mut files = vec![
        format!("v1/{HASH}/a.parquet"),
        format!("v1/{HASH}/manifest-00000001.json"),
        format!("v1/{HASH}/parts/a.parquet"),
        format!("v1/{HASH}/pin"),
        "left.commit".to_owned(),
        "save.json".to_owned(),
        "v1/listings/a.parquet".to_owned(),
        format!("v1/listings/{HASH}.json"),
        "v1/plans/b.json".to_owned(),
        "v1/writers/c.json".to_owned(),
        "v1/writers/empty.json".to_owned(),
    ];
    files.sort();
    for root in ["memory://users".to_owned(), dir.path().to_str().unwrap().to_owned()] {
        for file in &files {
            let content = if file.ends_with("empty.json") { "" } else { "{\"seal\":\"grey\",\"id\":1}" };
            put(&stores, &format!("{root}/{file}"), content).await;
        }
        for (path, ext, count) in [
            ("", &["parquet"] as &[&str], 3),
            ("", &["json"], 6),
            ("/**", &[], files.len()),
            ("/*/listings/*.parquet", &[], 1),
            ("/*/*/*.json", &[], 5),
            ("/*.commit", &[], 1),
        ] {
            let found = keys(&stores, &format!("{root}{path}"), ext).await.unwrap();
            assert_eq!(found.len(), count, "{root} {path} {found:?}");
        }
    }
}

/// Local stores write `NAME#123`, and rename it to `NAME`.
#[tokio::test]
async fn files_named_as_unfinished_writes_are_left_out_while_they_may_be_written_and_are_errors_then() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let list = async |path: &str, ext: &[&str]| keys(&stores(), at(path).to_str().unwrap(), ext).await;
    std::fs::create_dir(at("part#1")).unwrap();
    for name in ["a.csv", "a.csv#17", "part#1/b.csv"] {
        std::fs::write(at(name), "x").unwrap();
    }
    assert_eq!(list("", &["csv"]).await.unwrap().len(), 2, "a folder may have any name");
    assert_eq!(list("*", &[]).await.unwrap().len(), 1);
    let minutes_ago = |n: u64| {
        let now = crate::SystemClock::shared().unix_time();
        std::time::UNIX_EPOCH + now - std::time::Duration::from_secs(60 * n)
    };
    std::fs::File::options().write(true).open(at("a.csv#17")).unwrap().set_modified(minutes_ago(2)).unwrap();
    for path in ["*", "a*", "**"] {
        let e = list(path, &[]).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.message().contains("a.csv#17: ") && e.message().contains("rename it"), "{e}");
    }
    // Its extension is not that of the format, and these patterns leave it out.
    assert_eq!(list("", &["csv"]).await.unwrap().len(), 2);
    assert_eq!(list("*.csv", &[]).await.unwrap().len(), 1);
    // What a cache left there is no row of the folder.
    let parts = format!("v1/{HASH}/parts");
    std::fs::create_dir_all(at(&parts)).unwrap();
    std::fs::rename(at("a.csv#17"), at(&format!("{parts}/{HASH}-34c915ab28769920.arrow#17"))).unwrap();
    assert_eq!(list("**", &[]).await.unwrap().len(), 2);
}

#[cfg(unix)]
#[test]
fn links_in_local_paths_are_resolved_as_far_as_they_exist() {
    let dir = tempfile::tempdir().unwrap();
    let real = std::fs::canonicalize(dir.path()).unwrap();
    std::fs::create_dir(real.join("train")).unwrap();
    std::os::unix::fs::symlink(real.join("train"), real.join("alias")).unwrap();
    let at = |name: &str| format!("file://{}/{name}", real.display());
    for (path, want) in [
        ("alias", "train"),
        ("alias/new/deeper", "train/new/deeper"),
        ("alias/*.csv", "train/*.csv"),
        ("alias/**", "train/**"),
        ("none/x", "none/x"),
        ("al*/x", "al*/x"),
    ] {
        assert_eq!(without_links(&at(path)).unwrap(), at(want));
    }
    assert_eq!(without_links("s3://b/alias").unwrap(), "s3://b/alias");
}

#[test]
fn folders_that_a_pattern_reaches() {
    let folder = |text: &str| StoreUrl::parse(text).unwrap();
    for (path, at, reached) in [
        ("/data/train", "/data/train", true),
        ("/data/train", "/data", true),
        ("/data/train", "/data/train/saves", true),
        ("/data/train/a.parquet", "/data/train", true),
        ("/data/train/a.parquet", "/data/train/saves", false),
        ("/data/train/*.parquet", "/data/train", true),
        ("/data/train/*.parquet", "/data/train/saves", false),
        ("/data/**/*.parquet", "/data/train/saves", true),
        ("/data/*/*.parquet", "/data/saves", true),
        ("/data/train", "/data/training", false),
        ("s3://b/train/*", "s3://c/train", false),
        ("s3a://b/train/*", "s3://b/train", true),
    ] {
        assert_eq!(may_lie_in(path, &folder(at)).unwrap(), reached, "{path} {at}");
    }
}

#[tokio::test]
async fn memory_is_shared_by_name() {
    put(&stores(), "memory://shared-by-name/a", "x").await;
    assert_eq!(keys(&stores(), "memory://shared-by-name/a", &[]).await.unwrap(), ["a"]);
    assert!(keys(&stores(), "memory://another-name/a", &[]).await.is_err());
}

#[tokio::test]
async fn globs_are_the_same_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().to_str().unwrap().trim_start_matches('/').to_string();
    let s = stores();
    let files =
        ["a/1.csv", "a/10.csv", "a/2.csv", "a-b/1.csv", "a/x/3.csv", "a/x/4.json", "b.csv", "a/_SUCCESS"];
    let hidden = ["a/_notes.json", "a/.1.csv", "_temporary/0/9.csv"];
    for f in files.into_iter().chain(hidden) {
        put(&s, &format!("file:///{local}/{f}"), "x").await;
        put(&s, &format!("memory://globs/{local}/{f}"), "x").await;
    }
    std::fs::write(dir.path().join("a/1.csv#7"), "half written").unwrap();
    for (pattern, want) in [
        ("a/*.csv", &["a/1.csv", "a/10.csv", "a/2.csv"] as &[&str]),
        ("a*/1.csv", &["a-b/1.csv", "a/1.csv"]),
        ("**/*.csv", &["a-b/1.csv", "a/1.csv", "a/10.csv", "a/2.csv", "a/x/3.csv", "b.csv"]),
        ("{a/x,a-b}/*", &["a-b/1.csv", "a/x/3.csv", "a/x/4.json"]),
        ("a/[0-1].csv", &["a/1.csv"]),
        ("a/?.csv", &["a/1.csv", "a/2.csv"]),
        ("a/1*.csv", &["a/1.csv", "a/10.csv"]),
        ("a/2{,0}.csv", &["a/2.csv"]),
        ("a", &["a/1.csv", "a/10.csv", "a/2.csv", "a/x/3.csv"]),
        ("b.csv", &["b.csv"]),
        // Metadata files are skipped, unless the pattern names them.
        ("a{,/x}/*.json*", &["a/x/4.json"]),
        ("a/_*", &["a/_SUCCESS", "a/_notes.json"]),
        ("a/.*", &["a/.1.csv"]),
        ("_temporary/*/*.csv", &["_temporary/0/9.csv"]),
        ("_*/*/*.csv", &["_temporary/0/9.csv"]),
        ("a/_SUCCESS", &["a/_SUCCESS"]),
    ] {
        for root in ["file:///", "memory://globs/"] {
            let got = keys(&s, &format!("{root}{local}/{pattern}"), &["csv"]).await.unwrap();
            let got: Vec<_> = got.iter().map(|k| k.strip_prefix(&format!("{local}/")).unwrap()).collect();
            assert_eq!(got, want, "{root} {pattern}");
        }
    }
}

#[tokio::test]
async fn what_is_named_as_it_is_written_goes_before_the_pattern() {
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().to_str().unwrap().trim_start_matches('/').to_string();
    let s = stores();
    let files = ["x[1].csv", "x1.csv", "y1.csv", "r{1}/a.csv", "r{1}/b[2].csv", "r1/c.csv", "z/q[3]"];
    for f in files {
        put(&s, &format!("file:///{local}/{f}"), "x").await;
        put(&s, &format!("memory://literal/{local}/{f}"), "x").await;
    }
    for (pattern, want) in [
        ("x[1].csv", &["x[1].csv"] as &[&str]),
        ("x[1-1].csv", &["x1.csv"]),
        ("x[[]1].csv", &["x[1].csv"]),
        ("y[1].csv", &["y1.csv"]),
        ("r{1}", &["r{1}/a.csv", "r{1}/b[2].csv"]),
        ("r{1}/*.csv", &["r{1}/a.csv", "r{1}/b[2].csv"]),
        ("r{1}/b[2].csv", &["r{1}/b[2].csv"]),
        ("r{1}/[a-b]*.csv", &["r{1}/a.csv", "r{1}/b[2].csv"]),
        ("r{1,2}/*.csv", &["r1/c.csv"]),
        ("r[{]1[}]/a.csv", &["r{1}/a.csv"]),
    ] {
        for root in ["file:///", "memory://literal/"] {
            let got = keys(&s, &format!("{root}{local}/{pattern}"), &["csv"]).await.unwrap();
            let got: Vec<_> = got.iter().map(|k| k.strip_prefix(&format!("{local}/")).unwrap()).collect();
            assert_eq!(got, want, "{root} {pattern}");
        }
    }
}

#[tokio::test]
async fn nothing_found_says_what_is_there() {
    let s = stores();
    put(&s, "memory://nothing/data/train-0.csv", "x").await;
    put(&s, "memory://nothing/data/sub/y.csv", "x").await;
    for (path, want) in [
        (
            "memory://nothing/data/*.parquet",
            "no file matches memory://nothing/data/*.parquet; the folder memory://nothing/data holds sub/, train-0.csv",
        ),
        (
            "memory://nothing/data/train-1.csv",
            "memory://nothing/data/train-1.csv: no such file or folder; the folder memory://nothing/data holds \
             sub/, train-0.csv; did you mean `train-0.csv`?",
        ),
        (
            "memory://nothing/none/*.csv",
            "no file matches memory://nothing/none/*.csv; the folder memory://nothing/none does not exist",
        ),
    ] {
        let e = keys(&s, path, &["csv"]).await.unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::NotFound, want));
    }
    let dir = tempfile::tempdir().unwrap();
    let e = keys(&s, &format!("{}/*.csv", dir.path().display()), &[]).await.unwrap_err();
    assert!(e.message().ends_with("is empty"), "{e}");
    let e = keys(&s, &dir.path().display().to_string(), &["csv"]).await.unwrap_err();
    assert!(e.message().ends_with(": the folder is empty"), "{e}");
}

/// A store of 100,000 objects that answers listings page by page.
#[derive(Debug, Default)]
struct Pages {
    pages: AtomicU64,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}

#[async_trait]
impl ObjectStore for Pages {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> object_store::Result<PutResult> {
        unimplemented!()
    }
    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        unimplemented!()
    }
    async fn get_opts(&self, _: &Path, _: GetOptions) -> object_store::Result<GetResult> {
        unimplemented!()
    }
    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        unimplemented!()
    }
    fn list(&self, _: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        unimplemented!()
    }
    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store::Result<ListResult> {
        unimplemented!()
    }
    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        unimplemented!()
    }
}

#[derive(Debug, Clone)]
struct Shared(Arc<Pages>);

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

#[async_trait]
impl ObjectStore for Shared {
    async fn put_opts(&self, a: &Path, b: PutPayload, c: PutOptions) -> object_store::Result<PutResult> {
        self.0.put_opts(a, b, c).await
    }
    async fn put_multipart_opts(
        &self,
        a: &Path,
        b: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(a, b).await
    }
    async fn get_opts(&self, a: &Path, b: GetOptions) -> object_store::Result<GetResult> {
        self.0.get_opts(a, b).await
    }
    fn delete_stream(
        &self,
        a: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.0.delete_stream(a)
    }
    fn list(&self, _: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let me = Arc::clone(&self.0);
        stream::iter(0..100u64)
            .then(move |page| {
                me.pages.fetch_add(1, Ordering::Relaxed);
                async move {
                    stream::iter((0..1000).map(move |i| {
                        Ok(ObjectMeta {
                            location: format!("d/{:06}.parquet", page * 1000 + i).into(),
                            last_modified: Default::default(),
                            size: 1,
                            e_tag: Some("e".into()),
                            version: None,
                        })
                    }))
                }
            })
            .flatten()
            .boxed()
    }
    async fn list_with_delimiter(&self, a: Option<&Path>) -> object_store::Result<ListResult> {
        self.0.list_with_delimiter(a).await
    }
    async fn copy_opts(&self, a: &Path, b: &Path, c: CopyOptions) -> object_store::Result<()> {
        self.0.copy_opts(a, b, c).await
    }
}

#[tokio::test]
async fn the_first_of_100_000_objects_costs_one_page() {
    let s = stores();
    let pages = Arc::new(Pages::default());
    s.register("s3://many", Arc::new(Shared(Arc::clone(&pages)))).unwrap();
    let io = Arc::new(IoCounters::new());
    let mut list = s.list("s3://many/d/*.parquet", &[], &io);
    assert_eq!(list.next().await.unwrap().unwrap().url.key, "d/000000.parquet");
    assert_eq!(pages.pages.load(Ordering::Relaxed), 1);
    assert_eq!(list.count().await, 99_999);
    assert_eq!((pages.pages.load(Ordering::Relaxed), io.snapshot().lists), (100, 1));
    // Nothing after the last possible match is listed.
    assert_eq!(s.list("s3://many/d/0001*.parquet", &[], &io).count().await, 100);
    assert_eq!(pages.pages.load(Ordering::Relaxed), 101);
}

/// The opening of a pipe waits for a process that writes to it.
#[cfg(unix)]
#[tokio::test]
async fn a_pipe_in_the_place_of_a_file_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.csv");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let at = stores().resolve(pipe.to_str().unwrap()).unwrap();
    for e in [
        at.store.get(&at.path).await.map(drop).unwrap_err(),
        at.store.head(&at.path).await.map(drop).unwrap_err(),
        at.store.get_ranges(&at.path, &[0..1, 2..3]).await.map(drop).unwrap_err(),
    ] {
        assert!(e.to_string().contains("pipe.csv is not a regular file"), "{e}");
    }
    let e = keys(&stores(), pipe.to_str().unwrap(), &[]).await.unwrap_err();
    assert!(e.message().contains("pipe.csv: it is a device, a pipe or a socket"), "{e}");
    let missing = stores().resolve(dir.path().join("no.csv").to_str().unwrap()).unwrap();
    let e = missing.store.get(&missing.path).await.map(drop).unwrap_err();
    assert!(matches!(e, object_store::Error::NotFound { .. }), "{e}");
}

#[tokio::test]
async fn a_pattern_of_folders_is_an_error() {
    let s = stores();
    put(&s, "memory://folders/a/b.csv", "x").await;
    put(&s, "memory://folders/c.csv", "x").await;
    let e = keys(&s, "memory://folders/*/", &[]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.message().contains("write memory://folders/*/* for the files in the folders"), "{e}");
    assert_eq!(keys(&s, "memory://folders/*/*", &[]).await.unwrap(), ["a/b.csv"]);
}

#[cfg(unix)]
#[tokio::test]
async fn symbolic_links_that_lead_nowhere_are_errors_where_their_rows_would_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let link = |name: &str| std::os::unix::fs::symlink("/nowhere/at/all", dir.path().join(name)).unwrap();
    std::fs::write(dir.path().join("a.csv"), "x").unwrap();
    // What editors write, and what the pattern does not read.
    link(".#a.csv");
    link("readme");
    let (folder, pattern) = (dir.path().to_str().unwrap(), dir.path().join("*.csv"));
    let pattern = pattern.to_str().unwrap();
    assert_eq!(keys(&stores(), pattern, &[]).await.unwrap().len(), 1);
    link("b.csv");
    for path in [folder, pattern] {
        let e = keys(&stores(), path, &["csv"]).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.message().contains("b.csv: the symbolic link leads to a file that does not exist"), "{e}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_symbolic_link_in_the_place_of_a_folder_that_leads_nowhere_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let link =
        |to: &std::path::Path, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
    std::fs::create_dir(dir.path().join("2025")).unwrap();
    std::fs::write(dir.path().join("2025/a.csv"), "x").unwrap();
    link(&dir.path().join("2025"), "2026");
    // Hidden links are of editors, and a link to a file is no folder.
    link(std::path::Path::new("/nowhere/at/all"), ".2027");
    link(&dir.path().join("2025/a.csv"), "readme");
    let (folder, pattern) = (dir.path().to_str().unwrap(), dir.path().join("*/*.csv"));
    let pattern = pattern.to_str().unwrap();
    for path in [folder, pattern] {
        assert_eq!(keys(&stores(), path, &["csv"]).await.unwrap().len(), 2);
    }
    link(std::path::Path::new("/nowhere/at/all"), "2027");
    for path in [folder, pattern] {
        let e = keys(&stores(), path, &["csv"]).await.unwrap_err();
        assert!(e.message().contains("2027: the symbolic link leads to a file that does not exist"), "{e}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn what_cannot_be_listed_is_an_error_where_its_rows_would_be_read() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
    std::fs::create_dir(dir.path().join("train")).unwrap();
    std::fs::write(dir.path().join("train/a.csv"), "x").unwrap();
    let folder = dir.path().to_str().unwrap();
    let everywhere = format!("{folder}/**/*.csv");
    let listed = async |path: &str| keys(&stores(), path, &["csv"]).await;
    // Hidden ones are not listed, and other names not wanted.
    let bad_name = |start: &str, end: &str| {
        let name = [start.as_bytes(), b"\xff", end.as_bytes()].concat();
        dir.path().join(std::ffi::OsStr::from_bytes(&name))
    };
    std::fs::write(bad_name(".hidden", ".csv"), "x").unwrap();
    std::fs::write(bad_name("notes", ".txt"), "x").unwrap();
    link("notes.md", "notes.md");
    link(".", ".loop");
    for path in [folder, &everywhere] {
        assert_eq!(listed(path).await.unwrap().len(), 1, "{path}");
    }
    let refused = async |what: &str| {
        for path in [folder, &everywhere] {
            let e = listed(path).await.unwrap_err();
            assert!(e.message().contains(what), "{path}: {e}");
        }
        // A pattern that leaves it out.
        assert_eq!(listed(&format!("{folder}/train/*.csv")).await.unwrap().len(), 1);
    };
    std::fs::write(bad_name("b", ".csv"), "x").unwrap();
    refused("the name is not valid UTF-8").await;
    std::fs::remove_file(bad_name("b", ".csv")).unwrap();
    std::fs::create_dir(bad_name("shard", "")).unwrap();
    refused("the name is not valid UTF-8").await;
    std::fs::remove_dir(bad_name("shard", "")).unwrap();
    link("train/..", "back");
    refused("back: a symbolic link leads to the folder").await;
    // A pattern with an end lists nothing twice.
    assert_eq!(listed(&format!("{folder}/train/a.csv")).await.unwrap().len(), 1);
    std::fs::remove_file(dir.path().join("back")).unwrap();
    // Not at once: behind the link comes the folder that was listed first.
    std::os::unix::fs::symlink("..", dir.path().join("train/up")).unwrap();
    let e = listed(&format!("{folder}/train")).await.unwrap_err();
    assert!(e.message().contains("a symbolic link leads to the folder"), "{e}");
    std::fs::remove_file(dir.path().join("train/up")).unwrap();
    // The file system refuses to follow it, as it does a link to a folder of somebody else.
    link("itself", "itself");
    refused("the symbolic link leads to what cannot be reached").await;
}

#[tokio::test]
async fn folders_with_hidden_names_are_skipped_below_a_plain_folder() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["2026", "_temporary", ".git", "2026/.ipynb_checkpoints"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        std::fs::write(dir.path().join(folder).join("a.csv"), "x").unwrap();
    }
    let folder = dir.path().to_str().unwrap();
    for path in
        [folder.to_owned(), format!("{folder}/**"), format!("{folder}/**/*.csv"), format!("{folder}/*/*.csv")]
    {
        let found = keys(&stores(), &path, &["csv"]).await.unwrap();
        assert_eq!(found.len(), 1, "{path}: {found:?}");
    }
    assert_eq!(keys(&stores(), &format!("{folder}/_*/*.csv"), &["csv"]).await.unwrap().len(), 1);
    assert_eq!(
        keys(&stores(), &format!("{folder}/_temporary"), &["csv"]).await.unwrap().len(),
        1,
        "it is named"
    );
}

#[tokio::test]
async fn a_large_local_folder_is_read_once_and_looked_at_in_steps() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..1000 {
        std::fs::write(dir.path().join(format!("{i:04}.csv")), "").unwrap();
    }
    let io = Arc::new(IoCounters::new());
    let mut list = stores().list(dir.path().to_str().unwrap(), &["csv"], &io);
    let first = list.next().await.unwrap().unwrap();
    assert!(first.url.key.ends_with("/0000.csv") && first.ctime_ns.is_some() && first.etag.is_none());
    assert_eq!(io.snapshot().lists, 1);
    assert_eq!(list.count().await, 999);
}

#[tokio::test]
async fn requests_and_bytes_are_counted() {
    let io = Arc::new(IoCounters::new());
    let store = CountingStore::new(Arc::new(InMemory::new()), Arc::clone(&io));
    let path = Path::from("a");
    store.put(&path, "hello".into()).await.unwrap();
    store.get(&path).await.unwrap().bytes().await.unwrap();
    store.get_range(&path, 1..3).await.unwrap();
    store.get_ranges(&path, &[0..1, 2..5]).await.unwrap();
    store.head(&path).await.unwrap();
    store.list(None).count().await;
    let mut upload = store.put_multipart(&Path::from("b")).await.unwrap();
    upload.put_part("xyz".into()).await.unwrap();
    upload.complete().await.unwrap();
    store.copy(&path, &Path::from("c")).await.unwrap();
    store.delete(&path).await.unwrap();
    let want =
        IoSnapshot { reads: 4, lists: 1, writes: 5, deletes: 1, bytes_read: 11, bytes_written: 8, syncs: 0 };
    assert_eq!(io.snapshot(), want);
}

#[test]
fn what_is_allowed_is_of_a_known_kind() {
    let e = Stores::new(BTreeMap::new(), Some(Access { read: vec!["s4://bucket".into()], write: vec![] }))
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.message().contains("--allow") && e.message().contains("s4://bucket"), "{e}");
}
