//! Shards of a source by its files.

use std::collections::BTreeMap;

use caju_pipeline::{FileShard, FileSource, SourceDef};
use caju_types::{Error, Result, SplitKey};
use futures::future::ready;
use futures::stream::{BoxStream, StreamExt};
use serde::{Deserialize, Serialize};

use crate::split::{KeyHasher, Split, SplitRange, split_key};

/// What a static processing mode divides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardBy {
    /// The files of the source. Each worker runs the whole pipeline over its files.
    File,
    /// The rows of the source, or the elements below the last `take` or `skip`, in canonical order.
    Data,
    /// What arrives at the `shard` stages whose `num_shards` is `HINT`.
    Hint,
}

impl ShardBy {
    /// The name in messages between processes.
    pub fn as_str(self) -> &'static str {
        match self {
            ShardBy::File => "file",
            ShardBy::Data => "data",
            ShardBy::Hint => "hint",
        }
    }

    /// What a name means; none for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        [ShardBy::File, ShardBy::Data, ShardBy::Hint].into_iter().find(|by| by.as_str() == name)
    }
}

/// Whether all rows of a source are in files, so that it has shards by file.
pub fn has_files(source: &SourceDef) -> bool {
    match source {
        SourceDef::Files(_) | SourceDef::Load { .. } => true,
        // The files of a dataset that is repeated come several times.
        SourceDef::Concatenate(datasets) | SourceDef::Sample { datasets, .. } => {
            datasets.iter().all(|d| has_files(&d.source) && d.repetitions() == Some(1))
        }
        // A row of `zip` is in several files.
        SourceDef::Zip(_)
        | SourceDef::Range { .. }
        | SourceDef::Memory { .. }
        | SourceDef::InlineTable { .. } => false,
    }
}

/// The splits of the files `index`, `index + num_shards`, ... of a canonical listing, each file whole.
///
/// # Errors
/// Those of the listing; `NotFound` for a split that belongs to no file.
pub fn by_file(
    splits: BoxStream<'static, Result<Split>>,
    num_shards: u64,
    index: u64,
) -> BoxStream<'static, Result<Split>> {
    let mut files = Files { num_shards: num_shards.max(1), index, seen: 0, last: BTreeMap::new() };
    splits.filter_map(move |split| ready(split.and_then(|split| files.select(split)).transpose())).boxed()
}

/// The splits of those files that a definition asks for. What the processing mode decides is not decided here.
pub(crate) fn of_shard(
    splits: BoxStream<'static, Result<Split>>,
    def: &FileSource,
) -> BoxStream<'static, Result<Split>> {
    match def.shard {
        Some(FileShard { num_shards: Some(n), index }) => by_file(splits, n, index.unwrap_or(0)),
        _ => splits,
    }
}

/// Numbers the files of a listing.
struct Files {
    num_shards: u64,
    index: u64,
    /// Files so far.
    seen: u64,
    /// The last file of each dataset of a combinator, whose listings alternate.
    last: BTreeMap<Vec<u32>, (String, u64)>,
}

impl Files {
    /// What the shard has of a split.
    fn select(&mut self, mut split: Split) -> Result<Option<Split>> {
        if let Some(file) = &split.file {
            let number = match self.last.get(&split.child) {
                Some((url, number)) if *url == file.url => *number,
                _ => {
                    let number = self.next();
                    self.last.insert(split.child.clone(), (file.url.clone(), number));
                    number
                }
            };
            return Ok(self.has(number).then_some(split));
        }
        let SplitRange::Files(files) = split.range else {
            return Err(Error::not_found(format!(
                "{}: the source cannot be sharded by file, because its rows are not in files of their own; take \
                 processing mode `data` or `file_or_data`",
                split.describe()
            )));
        };
        let mine = files.into_iter().filter(|_| {
            let number = self.next();
            self.has(number)
        });
        let files: Vec<_> = mine.collect();
        if files.is_empty() {
            return Ok(None);
        }
        split.rows = Some(files.len() as u64);
        split.range = SplitRange::Files(files);
        split.key = nested_key(&split.child, split_key(None, &split.range));
        Ok(Some(split))
    }

    fn next(&mut self) -> u64 {
        self.seen += 1;
        self.seen - 1
    }

    fn has(&self, number: u64) -> bool {
        number % self.num_shards == self.index
    }
}

/// The key of a split of a nested dataset, as the combinators make it.
fn nested_key(child: &[u32], own: SplitKey) -> SplitKey {
    child
        .iter()
        .rev()
        .fold(own, |key, index| KeyHasher::new("child").value(i64::from(*index)).key(key).finish())
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use futures::stream;

    use super::*;
    use crate::split::{FileRef, FileVersion};

    fn file(name: &str) -> FileRef {
        FileRef { url: format!("memory:///{name}"), version: FileVersion::default() }
    }

    fn split(child: &[u32], name: &str, start: u64) -> Split {
        let range = SplitRange::Bytes { start, end: start + 1 };
        let key = split_key(Some(&file(name)), &range);
        Split {
            child: child.to_vec(),
            repetition: 0,
            key,
            file: Some(file(name)),
            range,
            rows: None,
            trim: None,
            stride: None,
        }
    }

    async fn shard(splits: Vec<Split>, n: u64, k: u64) -> Result<Vec<Split>> {
        by_file(stream::iter(splits.into_iter().map(Ok)).boxed(), n, k).try_collect().await
    }

    #[tokio::test]
    async fn each_file_is_whole_in_one_shard() {
        let all: Vec<Split> =
            ["a", "b", "c", "d", "e"].iter().flat_map(|f| [split(&[], f, 0), split(&[], f, 1)]).collect();
        let names = |splits: &[Split]| -> Vec<String> { splits.iter().map(Split::describe).collect() };
        let mut found = Vec::new();
        for k in 0..2 {
            found.extend(names(&shard(all.clone(), 2, k).await.unwrap()));
        }
        let want = ["a", "c", "e", "b", "d"]
            .iter()
            .flat_map(|f| [0, 1].map(|start| format!("memory:///{f} bytes {start}..{}", start + 1)));
        assert_eq!(found, want.collect::<Vec<_>>());
        assert!(shard(all, 9, 7).await.unwrap().is_empty(), "there are fewer files than shards");
    }

    #[tokio::test]
    async fn datasets_that_alternate_keep_their_files_whole() {
        let all = vec![split(&[0], "a", 0), split(&[1], "x", 0), split(&[0], "a", 1), split(&[1], "x", 1)];
        let first = shard(all, 2, 0).await.unwrap();
        assert_eq!(first.iter().map(|s| s.child[0]).collect::<Vec<_>>(), [0, 0]);
    }

    #[tokio::test]
    async fn splits_of_many_files_are_divided() {
        let range = SplitRange::Files(["a", "b", "c"].map(file).to_vec());
        let key = split_key(None, &range);
        let own = Split { file: None, rows: Some(3), range, key, ..split(&[], "a", 0) };
        let second = shard(vec![own.clone()], 2, 1).await.unwrap();
        assert_eq!((second.len(), second[0].rows), (1, Some(1)));
        assert_eq!(second[0].range, SplitRange::Files(vec![file("b")]));
        assert_ne!(second[0].key, own.key, "another piece has another key");
    }

    #[tokio::test]
    async fn sta_02_rows_without_files_cannot_be_sharded_by_file() {
        let rows = Split { file: None, range: SplitRange::Rows { start: 0, end: 9 }, ..split(&[], "a", 0) };
        let e = shard(vec![rows], 2, 0).await.unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::NotFound);
    }
}
