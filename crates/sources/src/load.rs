//! `load`: the rows of a save, also while it is being written.
//!
//! A split is a chunk of a part (the whole part, where no size of chunks was asked for), in the order of the
//! source that was saved. Parts are read through the cache's readers, which check every block and validate every batch
//! (a save may be anybody's): there is nothing to compute the rows from, so damage is an error that names the part.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Schema, SchemaRef};
use caju_cache::{
    Cache, CacheOptions, PartMeta, ReadOptions as PartOptions, SaveDescription, SaveState, Snapshot,
};
use caju_runtime::SystemClock;
use caju_types::{Error, ErrorKind, Fingerprint, Result, SplitKey};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::context::SourceContext;
use crate::save_polls::SavePolls;
use crate::source::{ReadOptions, Source};
use crate::split::{FileRef, FileVersion, KeyHasher, Split, SplitRange};
use crate::trim::{sliced, trimmed};

/// The rows of a save.
pub(crate) struct LoadSource {
    location: SaveLocation,
    wait: bool,
    schema: SchemaRef,
}

/// Where a save is, and what is needed to read it.
#[derive(Clone)]
struct SaveLocation {
    url: String,
    ctx: SourceContext,
}

impl LoadSource {
    /// Opens a save. `schema`: the schema that the dispatcher found.
    pub(crate) async fn open(
        path: &str,
        wait: bool,
        ctx: &SourceContext,
        schema: Option<SchemaRef>,
    ) -> Result<Self> {
        let location = SaveLocation { url: path.to_owned(), ctx: ctx.clone() };
        let schema = match schema {
            Some(schema) => schema,
            None => {
                let saved = location.saved(wait).await?;
                let read = serde_json::from_value::<Schema>(saved.arrow_schema);
                Arc::new(read.map_err(|e| Error::data_loss(format!("{path}: the save's schema: {e}")))?)
            }
        };
        Ok(Self { location, wait, schema })
    }
}

impl SaveLocation {
    /// The description, of a save that may be read.
    async fn saved(&self, wait: bool) -> Result<SaveDescription> {
        let url = &self.url;
        let saved = SaveDescription::load(&self.ctx.stores, url).await?.ok_or_else(|| {
            Error::not_found(format!("source load: there is no save at {url}; check the path, or save first"))
        })?;
        match saved.state {
            SaveState::Finished => Ok(saved),
            SaveState::Writing if wait => Ok(saved),
            SaveState::Writing => Err(Error::not_found(format!(
                "source load: there is no finished save at {url}: it is still being written; leave `wait: false` out \
                 to read it meanwhile"
            ))),
            SaveState::Failed => Err(Error::failed_precondition(format!(
                "source load: the save at {url} failed: {}; save again, which continues where it stopped",
                saved.error.as_deref().unwrap_or("no reason is known")
            ))),
        }
    }

    /// The cache whose root is the save.
    async fn cache(&self) -> Result<Arc<Cache>> {
        let cell = self.ctx.caches.save(&self.url);
        let open = || async {
            let clock = SystemClock::shared();
            let id = format!("load-{}-{:x}", std::process::id(), clock.unix_time().as_nanos());
            let options = CacheOptions { read_only: true, ..CacheOptions::default() };
            Cache::open(&self.ctx.stores, &self.url, options, clock, id).await
        };
        cell.get_or_try_init(open).await.cloned()
    }

    async fn snapshot(&self, of: Fingerprint) -> Result<Snapshot> {
        Ok(self.cache().await?.snapshot(&of))
    }

    /// The part of a split. If this process does not know it, the save is listed again.
    async fn part(&self, file: &FileRef) -> Result<(Snapshot, Arc<PartMeta>)> {
        let (of, key) = names_in(&file.url)
            .ok_or_else(|| Error::internal(format!("{}: this is not the name of a part", file.url)))?;
        let snapshot = self.snapshot(of).await?;
        let fits = |m: &Arc<PartMeta>| Some(&m.checksum) == file.version.content_hash.as_ref();
        if let Some(meta) = snapshot.cached_part(&key).filter(fits) {
            return Ok((snapshot, meta));
        }
        match snapshot.index().await?.get(&key).filter(|m| fits(m)) {
            Some(meta) => Ok((snapshot, Arc::clone(meta))),
            None => Err(Error::data_loss(format!(
                "{}: this part of the save is gone or was replaced; save the same pipeline again to replace it",
                file.url
            ))),
        }
    }

    async fn rows(self, split: Split, options: ReadOptions, schema: SchemaRef) -> Result<Rows> {
        let file = split.file.as_ref().ok_or_else(|| Error::internal("a split of a save names no part"))?;
        let (snapshot, meta) = self.part(file).await?;
        let chunks = match split.range {
            SplitRange::RowGroups { first, count } => {
                Some(first as usize..(first as usize).saturating_add(count as usize))
            }
            _ => None,
        };
        let read = PartOptions { chunks, ..PartOptions::default() };
        let url = file.url.clone();
        let lost = move |e: Error| match e.kind() {
            ErrorKind::NotFound | ErrorKind::DataLoss => Error::data_loss(format!(
                "{}: {url} cannot be read, and a save has nothing to compute its rows from; save the same pipeline again to replace it",
                e.message()
            )),
            _ => e,
        };
        let part = snapshot.open_part(&meta, read).await.map_err(&lost)?;
        // What the cache's reader moved for this chunk, but for its footer.
        let share = split.rows.unwrap_or(meta.rows) as f64 / meta.rows.max(1) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most the part's bytes"
        )]
        self.ctx.io.add_read((meta.bytes as f64 * share) as u64);
        let wanted = wanted(&schema, &options);
        let batches = part.map_err(lost).map(move |batch| arranged(&batch?, &wanted));
        let (rows, bytes) = (options.batch_rows, options.batch_bytes);
        let pieces = trimmed(batches.boxed(), split.trim)
            .map_ok(move |batch| stream::iter(sliced(batch, rows, bytes).into_iter().map(Ok)))
            .try_flatten();
        Ok(pieces.boxed())
    }
}

type Rows = BoxStream<'static, Result<RecordBatch>>;

fn wanted(schema: &SchemaRef, options: &ReadOptions) -> SchemaRef {
    match &options.projection {
        None => Arc::clone(schema),
        Some(places) => {
            let fields = places.iter().filter_map(|i| schema.fields().get(*i).cloned());
            Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
        }
    }
}

/// Columns are stored by name.
fn arranged(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = schema.fields().iter().map(|f| {
        let column = batch.column_by_name(f.name()).cloned();
        column.ok_or_else(|| Error::data_loss(format!("a part of the save has no column `{}`", f.name())))
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(|e| {
        Error::data_loss(format!("a part of the save has other columns than its description: {e}"))
    })
}

/// `.../FINGERPRINT/parts/SPLITKEY-ATTEMPT.arrow`
fn names_in(url: &str) -> Option<(Fingerprint, SplitKey)> {
    let (rest, name) = url.rsplit_once("/parts/")?;
    let of = Fingerprint::try_from(rest.rsplit_once('/')?.1.to_owned()).ok()?;
    let (key, _) = name.split_once('-')?;
    Some((of, SplitKey::try_from(key.to_owned()).ok()?))
}

/// The chunks of a part, as splits; `copy` counts repetitions.
fn splits_of(url: &str, meta: &PartMeta, copy: u64) -> Vec<Split> {
    let version =
        FileVersion { size: meta.bytes, content_hash: Some(meta.checksum.clone()), ..FileVersion::default() };
    let file = FileRef { url: format!("{}/v1/{}", url.trim_end_matches('/'), meta.path), version };
    let content = SplitKey(u128::from_str_radix(&meta.checksum, 16).unwrap_or_default());
    let split = |range: SplitRange, rows: u64| {
        let mut key = KeyHasher::new("load").key(content).range(&range);
        if copy > 0 {
            key = key.value(copy.cast_signed());
        }
        Split {
            child: Vec::new(),
            repetition: 0,
            key: key.finish(),
            file: Some(file.clone()),
            range,
            rows: Some(rows),
            trim: None,
            stride: None,
        }
    };
    if meta.chunks.len() < 2 {
        return vec![split(SplitRange::Whole, meta.rows)];
    }
    let chunk = |(i, rows): (usize, &u64)| {
        let first = u32::try_from(i).unwrap_or(u32::MAX);
        split(SplitRange::RowGroups { first, count: 1 }, *rows)
    };
    meta.chunks.iter().enumerate().map(chunk).collect()
}

/// The listing of a save: first the existing parts, then those that are added until it is finished.
struct Listing {
    location: SaveLocation,
    wait: bool,
    given: HashSet<SplitKey>,
    /// Parts, in their order, for further repetitions.
    parts: Vec<Arc<PartMeta>>,
    polls: SavePolls,
    done: bool,
    /// The repetitions that are still to be listed, of a finished save.
    copies: Range<u64>,
}

impl Listing {
    /// The next parts; waits for them while the save is being written.
    async fn next(&mut self) -> Result<Option<Vec<Split>>> {
        let clock = SystemClock::shared();
        while !self.done {
            // First the state, then the parts: a finished save has all of them.
            let saved = self.location.saved(self.wait).await?;
            let index = self.location.snapshot(saved.fingerprint).await?.index().await?;
            self.done = saved.state == SaveState::Finished;
            let mut found: Vec<Arc<PartMeta>> = Vec::new();
            if self.done {
                self.check_given(&saved.splits)?;
                for key in &saved.splits {
                    let lost = || {
                        Error::data_loss(format!(
                            "{}: the part of split {key} is gone from the save; save the same pipeline again to replace it",
                            self.location.url
                        ))
                    };
                    found.push(Arc::clone(index.get(key).ok_or_else(lost)?));
                }
            } else {
                found.extend(index.iter().map(|(_, m)| Arc::clone(m)));
                found.sort_by_key(|m| (m.created_unix_ms, m.split));
            }
            found.retain(|m| self.given.insert(m.split));
            let mut splits: Vec<Split> =
                found.iter().flat_map(|m| splits_of(&self.location.url, m, 0)).collect();
            self.parts.extend(found);
            if self.done {
                self.copies = 1..saved.copies;
                if saved.copies == 0 {
                    splits.clear();
                }
            }
            if !splits.is_empty() {
                self.polls.on_part();
                return Ok(Some(splits));
            }
            if !self.done {
                self.poll_for_parts(clock.as_ref()).await?;
            }
        }
        Ok(self.next_copy())
    }

    /// The splits of the next repetition: a save may be repeated more often than there is memory for all of them.
    fn next_copy(&mut self) -> Option<Vec<Split>> {
        if self.parts.is_empty() {
            return None;
        }
        let copy = self.copies.next()?;
        Some(self.parts.iter().flat_map(|m| splits_of(&self.location.url, m, copy)).collect())
    }

    /// Parts that were read while the save was written are parts of the finished save. A save that failed or was ended may have
    /// parts of files that were removed or overwritten before it was started again.
    fn check_given(&self, splits: &[SplitKey]) -> Result<()> {
        let finished: HashSet<&SplitKey> = splits.iter().collect();
        let foreign = self.given.iter().filter(|key| !finished.contains(key)).count();
        if foreign == 0 {
            return Ok(());
        }
        Err(Error::data_loss(format!(
            "{}: {foreign} of the parts that this epoch has read while the save was written are not of the finished save: files \
             of its source were removed or overwritten before it was started again; read the epoch again",
            self.location.url
        )))
    }

    async fn poll_for_parts(&mut self, clock: &dyn caju_runtime::Clock) -> Result<()> {
        let Some(pause) = self.polls.next_pause() else {
            return Err(Error::deadline(format!(
                "source load: the save at {} is not finished, and had no new part for {}; see how it goes with `caju \
                 status`, or raise --save-wait",
                self.location.url,
                caju_types::format_duration(self.polls.timeout())
            )));
        };
        clock.sleep(pause).await;
        Ok(())
    }
}

impl Source for LoadSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        let listing = Listing {
            location: self.location.clone(),
            wait: self.wait,
            given: HashSet::new(),
            parts: Vec::new(),
            polls: SavePolls::new(self.location.ctx.limits.save_wait),
            done: false,
            copies: 0..0,
        };
        stream::try_unfold(listing, |mut listing| async move {
            Ok::<_, Error>(listing.next().await?.map(|splits| (splits, listing)))
        })
        .map_ok(|splits| stream::iter(splits.into_iter().map(Ok)))
        .try_flatten()
        .boxed()
    }

    fn read(&self, split: &Split, options: &ReadOptions) -> Rows {
        let rows = self.location.clone().rows(split.clone(), options.clone(), Arc::clone(&self.schema));
        stream::once(rows).try_flatten().boxed()
    }
}
