//! Reading sources.

use caju_types::{Error, Result, did_you_mean};

use super::Reader;
use super::args::{Args, At};
use super::stage::number_or_hint;
use crate::binary;
use crate::def::{
    ColumnType, Compression, DEFAULT_SPLIT_BYTES, DatasetDef, FileFormat, FileShard, FileSource, SourceDef,
    VersionRule,
};
use crate::path;
use crate::spelling::{COLUMN_TYPES, COMPRESSIONS, SOURCES, VERSION_RULES};

impl Reader<'_> {
    pub(super) fn source(&self, at: At<'_>, depth: usize) -> Result<SourceDef> {
        let Some((name, inner)) = at.single() else {
            let names: Vec<_> = SOURCES.iter().map(|(n, _)| *n).collect();
            return Err(at.wrong(&format!(
                "one source such as `{{ parquet: {{ path: \"data/*.parquet\" }} }}` (one of {})",
                names.join(", ")
            )));
        };
        let Some((_, example)) = SOURCES.iter().find(|(n, _)| *n == name) else {
            let mut hint = did_you_mean(name, SOURCES.iter().map(|(n, _)| *n));
            if hint.is_empty() {
                let names: Vec<_> = SOURCES.iter().map(|(n, _)| *n).collect();
                hint = format!("; known are {}", names.join(", "));
            }
            return Err(Error::invalid(format!("unknown source `{name}` at {}{hint}", at.path)));
        };
        match name {
            "range" => range(inner, example),
            "memory" => memory(inner, example),
            "concatenate" => Ok(SourceDef::Concatenate(self.datasets(&inner, depth)?)),
            "zip" => Ok(SourceDef::Zip(self.datasets(&inner, depth)?)),
            "sample" => self.sample(inner, example, depth),
            "load" => self.load(inner, example),
            format => self.files(format, inner, example),
        }
    }

    fn datasets(&self, at: &At<'_>, depth: usize) -> Result<Vec<DatasetDef>> {
        let items = at.list("a list of datasets, each `{ source: .., steps: [..] }`")?;
        items.into_iter().map(|item| self.dataset(item, depth + 1)).collect()
    }

    fn sample(&self, at: At<'_>, example: &'static str, depth: usize) -> Result<SourceDef> {
        let mut args = Args::new(at, None, example)?;
        let datasets = args.need("datasets")?;
        let weights = args.need("weights")?;
        let seed = args.get("seed").map(|a| a.count()).transpose()?;
        args.finish()?;
        let weights = weights
            .list("a list of weights")?
            .iter()
            .map(|w| w.f64("a positive number"))
            .collect::<Result<_>>()?;
        Ok(SourceDef::Sample { datasets: self.datasets(&datasets, depth)?, weights, seed })
    }

    fn load(&self, at: At<'_>, example: &'static str) -> Result<SourceDef> {
        let mut args = Args::new(at, Some("path"), example)?;
        let path_at = args.need("path")?;
        let wait = args.get("wait").map_or(Ok(true), |a| a.bool())?;
        args.finish()?;
        let text = path_at.str("the folder or URL of a save")?;
        let path = path::resolve(text, self.base).map_err(|e| path_at.error(e))?;
        Ok(SourceDef::Load { path, wait })
    }

    fn files(&self, format: &str, at: At<'_>, example: &'static str) -> Result<SourceDef> {
        // A list is the short form of several paths.
        let mut args = Args::new(at, Some("path"), example)?;
        let path_at = args.need("path")?;
        let version = args.get("version").map_or(Ok(VersionRule::Listed), |a| a.word(VERSION_RULES))?;
        let split_bytes = args.get("split").map_or(Ok(DEFAULT_SPLIT_BYTES), |a| a.size())?;
        let shard = args.get("shard").map(shard).transpose()?;
        let format = file_format(format, &mut args)?;
        args.finish()?;
        let expected = "a path or a list of paths";
        let paths = path_at
            .texts(expected)?
            .iter()
            .map(|text| path::resolve(text, self.base).map_err(|e| path_at.error(e)))
            .collect::<Result<_>>()?;
        Ok(SourceDef::Files(FileSource { format, paths, version, split_bytes, shard }))
    }
}

/// Reads `{ num_shards: 5, index: 1 }`, where both may be `HINT`.
fn shard(at: At<'_>) -> Result<FileShard> {
    let mut args = Args::new(at, None, "shard: { num_shards: 5, index: 1 }")?;
    let num_shards = number_or_hint(&args.need("num_shards")?, |a| a.positive())?;
    let index = number_or_hint(&args.need("index")?, |a| a.count())?;
    args.finish()?;
    Ok(FileShard { num_shards, index })
}

fn file_format(name: &str, args: &mut Args<'_>) -> Result<FileFormat> {
    Ok(match name {
        "tfrecord" => FileFormat::TfRecord { compression: compression(args)? },
        "parquet" => FileFormat::Parquet { columns: columns(args)? },
        "arrow" => FileFormat::Arrow { columns: columns(args)? },
        "webdataset" => FileFormat::WebDataset { compression: compression(args)?, columns: columns(args)? },
        "csv" => FileFormat::Csv {
            header: args.get("header").map_or(Ok(true), |a| a.bool())?,
            delimiter: args.get("delimiter").map_or(Ok(','), |a| delimiter(&a))?,
            schema: schema(args)?,
            compression: compression(args)?,
        },
        "json" => FileFormat::Json { schema: schema(args)?, compression: compression(args)? },
        "images" => FileFormat::Images,
        // The caller has found the name in the table of sources.
        other => return Err(Error::internal(format!("the source `{other}` has no reader"))),
    })
}

fn compression(args: &mut Args<'_>) -> Result<Compression> {
    args.get("compression").map_or(Ok(Compression::Auto), |a| a.word(COMPRESSIONS))
}

fn columns(args: &mut Args<'_>) -> Result<Option<Vec<String>>> {
    args.get("columns").map(|a| a.texts("a list of columns")).transpose()
}

fn schema(args: &mut Args<'_>) -> Result<Option<Vec<(String, ColumnType)>>> {
    let Some(at) = args.get("schema") else { return Ok(None) };
    let entries = at.entries("a map of columns to types such as `{ id: int64 }`")?;
    entries.into_iter().map(|(name, ty)| Ok((name, ty.word(COLUMN_TYPES)?))).collect::<Result<_>>().map(Some)
}

fn delimiter(at: &At<'_>) -> Result<char> {
    let expected = r#"one character such as ";" or "\t""#;
    let mut chars = at.str(expected)?.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(at.wrong(expected)),
    }
}

fn range(at: At<'_>, example: &'static str) -> Result<SourceDef> {
    let mut args = Args::new(at, Some("end"), example)?;
    let start = args.get("start").map_or(Ok(0), |a| a.i64())?;
    let end = args.need("end")?.i64()?;
    let step = args.get("step").map_or(Ok(1), |a| a.i64())?;
    args.finish()?;
    Ok(SourceDef::Range { start, end, step })
}

fn memory(at: At<'_>, example: &'static str) -> Result<SourceDef> {
    let mut args = Args::new(at, Some("ipc"), example)?;
    if let Some(name) = args.get("sha256") {
        args.finish()?;
        let expected = "64 hexadecimal digits in lower case";
        let sha256 = name.str(expected)?.to_owned();
        let hexadecimal = sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        return if sha256.len() == 64 && hexadecimal {
            Ok(SourceDef::InlineTable { sha256 })
        } else {
            Err(name.wrong(expected))
        };
    }
    let ipc = args.need("ipc")?;
    args.finish()?;
    let expected = "an Arrow IPC stream in base64";
    let bytes = binary::decode(ipc.str(expected)?).ok_or_else(|| ipc.wrong(expected))?;
    Ok(SourceDef::Memory { ipc: bytes.into() })
}
