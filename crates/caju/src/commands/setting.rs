//! What the summary of a run depends on apart from the run's numbers: its elements, and where it reads and stores rows.

use caju_pipeline::{DatasetDef, SourceDef};

/// Where files are. The order is by distance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Location {
    /// In memory. Rows that a source computes are in memory, too.
    Memory,
    /// In a folder of this machine.
    Folder,
    /// Not known.
    #[default]
    Unknown,
    /// In an object store.
    Remote,
}

impl Location {
    /// The location of a path or URL. An empty one is unknown.
    pub(crate) fn of(url: &str) -> Self {
        match url.split_once("://").map(|(scheme, _)| scheme) {
            None if url.is_empty() => Self::Unknown,
            None | Some("file") => Self::Folder,
            Some("memory") => Self::Memory,
            Some(_) => Self::Remote,
        }
    }

    /// The location of the farthest file of a source.
    fn of_source(source: &SourceDef) -> Self {
        let own = match source {
            SourceDef::Files(files) => files.paths.iter().map(|path| Self::of(path)).max(),
            SourceDef::Load { path, .. } => Some(Self::of(path)),
            _ => None,
        };
        let children = source.children().iter().map(|child| Self::of_source(&child.source)).max();
        own.max(children).unwrap_or(Self::Memory)
    }
}

/// The locations of the files that a job reads and writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Locations {
    pub(crate) source: Location,
    pub(crate) cache: Location,
}

impl Locations {
    /// The locations of a definition's source and of a cache. A cache that is not given is unknown.
    pub(crate) fn of(def: &DatasetDef, cache: Option<&str>) -> Self {
        Self { source: Location::of_source(&def.source), cache: cache.map(Location::of).unwrap_or_default() }
    }
}

/// What the elements of a definition are called.
pub(crate) fn elements(def: &DatasetDef) -> &'static str {
    if def.batched_by().is_some() { "batches" } else { "elements" }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_source_is_as_far_as_its_farthest_file() {
        let of = |yaml: &str| {
            let yaml = format!("source: {yaml}\nsteps: [{{ batch: 4 }}]\n");
            let def = DatasetDef::from_yaml(&yaml, Some(Path::new("/data"))).unwrap();
            Locations::of(&def, None)
        };
        let at = |source| Locations { source, cache: Location::Unknown };
        assert_eq!(of("{ range: 10 }"), at(Location::Memory));
        assert_eq!(of("{ csv: { path: x.csv } }"), at(Location::Folder));
        assert_eq!(of("{ parquet: { path: \"s3://bucket/*.parquet\" } }"), at(Location::Remote));
        let mixed = "{ concatenate: [ { source: { range: 10 } }, { source: { csv: \"s3://b/x.csv\" } } ] }";
        assert_eq!(of(mixed), at(Location::Remote));
        assert_eq!(Location::of("/data/cache"), Location::Folder);
        assert_eq!(Location::of("memory:///cache"), Location::Memory);
    }

    #[test]
    fn elements_are_batches_behind_a_batch_stage() {
        let of = |steps: &str| {
            elements(
                &DatasetDef::from_yaml(&format!("source: {{ range: 9 }}\nsteps: {steps}\n"), None).unwrap(),
            )
        };
        assert_eq!(of("[ { batch: 3 }, { prefetch: 2 } ]"), "batches");
        assert_eq!(of("[ { batch: 3 }, unbatch ]"), "elements");
        assert_eq!(of("[ { shuffle: { buffer: 3 } } ]"), "elements");
    }
}
