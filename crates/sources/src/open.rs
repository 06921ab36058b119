//! Opening a definition's source: one reader per format, and the combinators.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use caju_kernels::check_columns;
use caju_pipeline::{DatasetDef, FileFormat, FileSource, SourceDef, VersionRule};
use caju_types::{Error, Result};
use futures::future::BoxFuture;
use futures::stream::StreamExt;

use crate::context::SourceContext;
use crate::leaf_schemas::LeafSchemas;
use crate::source::Source;
use crate::split::FileRef;
use crate::{
    combine, csv, files, guard, images, inline_table, ipc, json, lines, load, parquet, plain, text, tfrecord,
    webdataset, zip,
};

impl SourceContext {
    /// Whether the first file of a source is still the one of its cached listing: then the source has the same columns.
    ///
    /// # Errors
    /// The errors of listing the source.
    pub async fn first_file_is_unchanged(&self, def: &SourceDef) -> Result<bool> {
        let SourceDef::Files(files) = def else { return Ok(false) };
        Ok(self.listing.starts_with(&first_file(files, self).await?))
    }
}

/// The first file of a source: errors such as an empty glob show here, before anything runs.
async fn first_file(def: &FileSource, ctx: &SourceContext) -> Result<FileRef> {
    match files::find_files(ctx, def).next().await {
        // It is not hashed for this.
        Some(file) if def.version == VersionRule::Content => file,
        Some(file) => file.and_then(files::with_version),
        None => Err(Error::invalid("the source names no files; give `path`")),
    }
}

/// Opens a definition's source, recursively, and finds its schema.
///
/// `schema`: the [`source_schema`](crate::source_schema) that the dispatcher found. It is trusted without opening a file.
///
/// # Errors
/// `NotFound` for a missing file or a glob without a match, `InvalidArgument` for files of another shape
/// than the definition says, `FailedPrecondition` for a schema of other datasets, and what the stores report.
pub async fn open_source(
    def: &SourceDef,
    ctx: &SourceContext,
    schema: Option<SchemaRef>,
) -> Result<Arc<dyn Source>> {
    let mut known = LeafSchemas::of(def, schema)?;
    let source = open(def, ctx, &mut known).await?;
    known.check_all_taken()?;
    Ok(source)
}

/// `known`: the schemas of the sources from this one on.
fn open<'a>(
    def: &'a SourceDef,
    ctx: &'a SourceContext,
    known: &'a mut LeafSchemas,
) -> BoxFuture<'a, Result<Arc<dyn Source>>> {
    Box::pin(async move {
        let schema = if def.children().is_empty() { known.take_next()? } else { None };
        Ok(match def {
            SourceDef::Files(files) => open_files(files, ctx, schema).await?,
            SourceDef::Range { start, end, step } => Arc::new(plain::RangeSource::new(*start, *end, *step)?),
            SourceDef::Memory { ipc } => {
                checked("source memory", plain::MemorySource::new(ipc, ctx.limits.chunk_bytes)?)?
            }
            SourceDef::InlineTable { sha256 } => {
                checked("source memory", plain::MemorySource::of(inline_table::find(sha256)?))?
            }
            SourceDef::Load { path, wait } => {
                checked(path, load::LoadSource::open(path, *wait, ctx, schema).await?)?
            }
            SourceDef::Concatenate(datasets) => {
                let children = open_children(datasets, ctx, known).await?;
                Arc::new(combine::Concatenated { children })
            }
            SourceDef::Sample { datasets, weights, .. } => {
                if datasets.len() != weights.len() || weights.iter().any(|w| !w.is_finite() || *w <= 0.0) {
                    return Err(Error::invalid("source sample: give one positive weight per dataset"));
                }
                let children = open_children(datasets, ctx, known).await?;
                let repetitions = datasets.iter().map(DatasetDef::repetitions).collect();
                Arc::new(combine::Sampled { children, weights: weights.clone(), repetitions })
            }
            SourceDef::Zip(datasets) => {
                Arc::new(zip::Zipped::new(datasets, open_children(datasets, ctx, known).await?)?)
            }
        })
    })
}

/// A source whose columns have names and types that rows may have. `place` is its name in errors.
fn checked<S: Source + 'static>(place: &str, source: S) -> Result<Arc<dyn Source>> {
    check_columns(&source.schema()).map_err(|e| e.context(place))?;
    Ok(Arc::new(source))
}

async fn open_children(
    datasets: &[DatasetDef],
    ctx: &SourceContext,
    known: &mut LeafSchemas,
) -> Result<Vec<Arc<dyn Source>>> {
    let mut children = Vec::with_capacity(datasets.len());
    for (i, dataset) in datasets.iter().enumerate() {
        let child = open(&dataset.source, ctx, known).await;
        children.push(child.map_err(|e| e.context(format!("dataset {i}")))?);
    }
    Ok(children)
}

async fn open_files(
    def: &FileSource,
    ctx: &SourceContext,
    schema: Option<SchemaRef>,
) -> Result<Arc<dyn Source>> {
    let first = match schema {
        Some(_) => None,
        None => Some(first_file(def, ctx).await?),
    };
    let place = name_of(first.as_ref());
    Ok(match &def.format {
        FileFormat::TfRecord { compression } => {
            Arc::new(files::FilesSource::new(tfrecord::TfRecord::new(*compression), def, ctx))
        }
        FileFormat::Parquet { columns } => {
            let columns = columns.as_deref();
            let format = match (schema, &first) {
                (Some(schema), _) => parquet::Parquet::with_schema(schema, columns),
                (None, Some(first)) => {
                    guard::planned(&first.url, parquet::Parquet::discover(ctx, first, columns)).await?
                }
                (None, None) => return Err(Error::internal("neither a schema nor a file")),
            };
            checked(place, files::FilesSource::new(format, def, ctx))?
        }
        FileFormat::WebDataset { compression, columns } => {
            let columns = columns.as_deref();
            let format = match (schema, &first) {
                (Some(schema), _) => {
                    webdataset::WebDataset::with_schema(schema, *compression, columns.is_some())
                }
                (None, Some(first)) => {
                    let found = webdataset::WebDataset::discover(ctx, first, *compression, columns);
                    guard::planned(&first.url, found).await?
                }
                (None, None) => return Err(Error::internal("neither a schema nor a file")),
            };
            checked(place, files::FilesSource::new(format, def, ctx))?
        }
        FileFormat::Csv { header, delimiter, schema: given, compression } => {
            let delimiter = u8::try_from(*delimiter).ok().filter(u8::is_ascii).ok_or_else(|| {
                Error::invalid(format!("source csv: the delimiter `{delimiter}` is not an ASCII character"))
            })?;
            let given = given.as_ref().map(|g| text::given_schema(g, "csv")).transpose()?;
            let text = csv::Csv { header: *header, delimiter };
            let format = lines::Lines::open(ctx, text, *compression, schema.or(given), first.as_ref());
            let format = guard::planned(place, format).await?;
            checked(place, files::FilesSource::new(format, def, ctx))?
        }
        FileFormat::Json { schema: given, compression } => {
            let given = given.as_ref().map(|g| text::given_schema(g, "json")).transpose()?;
            let text = json::Json { is_given: given.is_some(), memory: ctx.limits.chunk_bytes };
            if let (None, Some(given), Some(first)) = (&schema, &given, &first) {
                let check = lines::Lines::check_names(ctx, &text, *compression, given, first);
                guard::planned(&first.url, check).await?;
            }
            let format = lines::Lines::open(ctx, text, *compression, schema.or(given), first.as_ref());
            let format = guard::planned(place, format).await?;
            checked(place, files::FilesSource::new(format, def, ctx))?
        }
        FileFormat::Arrow { columns } => {
            let format = match (schema, &first) {
                (Some(schema), _) => ipc::Ipc::with_schema(schema, columns.is_some()),
                (None, Some(first)) => {
                    guard::planned(&first.url, ipc::Ipc::discover(ctx, first, columns.as_deref())).await?
                }
                (None, None) => return Err(Error::internal("neither a schema nor a file")),
            };
            checked(place, files::FilesSource::new(format, def, ctx))?
        }
        FileFormat::Images => Arc::new(images::ImagesSource::new(ctx, def)),
    })
}

/// The name, in errors, of the file whose schema is inferred.
fn name_of(first: Option<&FileRef>) -> &str {
    first.map_or("the source", |f| f.url.as_str())
}
