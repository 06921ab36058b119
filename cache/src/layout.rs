//! The names of the objects below a cache root.
//!
//! ```text
//! ROOT/v1/writers/ID.json                            the lease object of a process
//! ROOT/v1/plans/DEFINITION.json                      plan record of a pipeline: lets later jobs start warm
//! ROOT/v1/listings/SOURCE.json                       listing of a source, for jobs that cannot reach it
//! ROOT/v1/FINGERPRINT/manifest-00000001.json         supersedes the one before, created only if absent
//! ROOT/v1/FINGERPRINT/parts/SPLITKEY-ATTEMPT.arrow   or .parquet
//! ROOT/v1/FINGERPRINT/parts/_SPLITKEY-G.commit       commits a part; the highest G wins
//! ROOT/v1/FINGERPRINT/claims/SPLITKEY-C.json         the process that writes the split now; the highest C wins
//! ROOT/v1/FINGERPRINT/uses/ID.json                   what a process read from the snapshot
//! ROOT/v1/FINGERPRINT/uses/until-MS.json             what processes read that are gone
//! ROOT/v1/FINGERPRINT/pin                            keeps the snapshot from being evicted
//! ROOT/v1/FINGERPRINT/sets/ATTEMPT-SPLITKEY.json     a part that counts only once its set is complete
//! ROOT/v1/FINGERPRINT/set.json                       a complete set: names all its parts, created only if absent
//! ```
//!
//! The root of a save has `ROOT/save.json`, too. On a store without conditional puts, names of commit records and claims
//! end in `-ATTEMPT`, so that no two processes write one object. The oldest object (by the store's time, then by name) is
//! valid.
//!
//! Tools that open a folder of files as a data set (pyarrow, Spark, Hive) skip names that begin with `_`, so that they see
//! only the parts. Earlier versions wrote commit records without the `_`: both names are read.

use caju_types::{Fingerprint, SplitKey};
use object_store::path::Path;

use caju_autocache::Format;

/// The version of the layout and of all formats in it.
pub(crate) const VERSION: &str = "v1";
/// The folder of plan records.
pub(crate) const PLANS: &str = "plans";
/// The description of a save, below its root.
pub(crate) const SAVE_NAME: &str = "save.json";

/// The number of a commit record of a split, or of a claim on it. It counts from 1.
pub(crate) type Generation = u32;

/// The kind of an object below a snapshot's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Object {
    Manifest(u64),
    Part {
        split: SplitKey,
        attempt: String,
    },
    Commit {
        split: SplitKey,
        generation: Generation,
        attempt: Option<String>,
    },
    Claim {
        split: SplitKey,
        number: Generation,
        attempt: Option<String>,
    },
    Use(String),
    /// The sum of the usage records of processes that have ended. The last use was at this time by the store's clock.
    UsesUntil(i64),
    /// The record of a set, or an announcement of one of its parts.
    Set,
    Pin,
    Other,
}

/// Names below one root.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    base: String,
}

impl Layout {
    pub(crate) fn new(root: &Path) -> Self {
        let root = root.as_ref();
        Self { base: if root.is_empty() { VERSION.to_string() } else { format!("{root}/{VERSION}") } }
    }

    /// The folder of all objects but `save.json`.
    pub(crate) fn base(&self) -> Path {
        path(self.base.clone())
    }

    /// The folder of plan records.
    pub(crate) fn plans(&self) -> Path {
        path(format!("{}/{PLANS}", self.base))
    }

    /// The folder of probes' objects.
    pub(crate) fn probes(&self) -> Path {
        path(format!("{}/probes", self.base))
    }

    pub(crate) fn probe(&self, id: &str) -> Path {
        path(format!("{}/probes/{id}", self.base))
    }

    pub(crate) fn writers(&self) -> Path {
        path(format!("{}/writers", self.base))
    }

    pub(crate) fn writer(&self, id: &str) -> Path {
        path(format!("{}/writers/{id}.json", self.base))
    }

    pub(crate) fn folder(&self, of: Fingerprint) -> Path {
        path(format!("{}/{of}", self.base))
    }

    pub(crate) fn manifest(&self, of: Fingerprint, number: u64) -> Path {
        path(format!("{}/{of}/manifest-{number:08}.json", self.base))
    }

    pub(crate) fn part(&self, of: Fingerprint, split: SplitKey, attempt: &str, format: Format) -> Path {
        path(format!("{}/{of}/parts/{split}-{attempt}.{format}", self.base))
    }

    pub(crate) fn commit(
        &self,
        of: Fingerprint,
        split: SplitKey,
        g: Generation,
        attempt: Option<&str>,
    ) -> Path {
        path(format!("{}/{of}/parts/_{split}-{g}{}.commit", self.base, tail(attempt)))
    }

    /// The name of the same record as earlier versions wrote it.
    pub(crate) fn commit_before(
        &self,
        of: Fingerprint,
        split: SplitKey,
        g: Generation,
        attempt: Option<&str>,
    ) -> Path {
        path(format!("{}/{of}/parts/{split}-{g}{}.commit", self.base, tail(attempt)))
    }

    pub(crate) fn claim(
        &self,
        of: Fingerprint,
        split: SplitKey,
        c: Generation,
        attempt: Option<&str>,
    ) -> Path {
        path(format!("{}/{of}/claims/{split}-{c}{}.json", self.base, tail(attempt)))
    }

    pub(crate) fn usage(&self, of: Fingerprint, id: &str) -> Path {
        path(format!("{}/{of}/uses/{id}.json", self.base))
    }

    pub(crate) fn uses_until(&self, of: Fingerprint, ms: i64) -> Path {
        self.usage(of, &format!("until-{ms}"))
    }

    pub(crate) fn listings(&self) -> Path {
        path(format!("{}/listings", self.base))
    }

    pub(crate) fn pin(&self, of: Fingerprint) -> Path {
        path(format!("{}/{of}/pin", self.base))
    }

    /// The record of a complete set.
    pub(crate) fn set(&self, of: Fingerprint) -> Path {
        path(format!("{}/{of}/set.json", self.base))
    }

    /// The folder of the announced parts of sets.
    pub(crate) fn members(&self, of: Fingerprint) -> Path {
        path(format!("{}/{of}/sets", self.base))
    }

    /// The announcement of one part.
    pub(crate) fn member(&self, of: Fingerprint, attempt: &str, part: SplitKey) -> Path {
        path(format!("{}/{of}/sets/{attempt}-{part}.json", self.base))
    }

    /// The path relative to the base folder, as messages and records have it.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> Option<&'a str> {
        path.as_ref().strip_prefix(self.base.as_str())?.strip_prefix('/')
    }

    /// The path of an object that a record names.
    pub(crate) fn absolute(&self, relative: &str) -> Path {
        path(format!("{}/{relative}", self.base))
    }

    /// The snapshot of an object, and the kind of the object.
    pub(crate) fn parse(&self, path: &Path) -> Option<(Fingerprint, Object)> {
        let rest = self.relative(path)?;
        let (folder, name) = rest.split_once('/')?;
        let of = Fingerprint::try_from(folder.to_string()).ok()?;
        Some((of, object(name)))
    }
}

fn path(text: String) -> Path {
    // The root was parsed literally, and nothing that is added to it needs escapes.
    Path::parse(&text).unwrap_or_else(|_| Path::from(text))
}

fn tail(attempt: Option<&str>) -> String {
    attempt.map(|a| format!("-{a}")).unwrap_or_default()
}

fn object(name: &str) -> Object {
    parse_object(name).unwrap_or(Object::Other)
}

fn parse_object(name: &str) -> Option<Object> {
    if name == "pin" {
        return Some(Object::Pin);
    }
    if name == "set.json" || name.starts_with("sets/") {
        return Some(Object::Set);
    }
    if let Some(n) = name.strip_prefix("manifest-") {
        return Some(Object::Manifest(n.strip_suffix(".json")?.parse().ok()?));
    }
    if let Some(id) = name.strip_prefix("uses/") {
        let id = id.strip_suffix(".json")?;
        let until = id.strip_prefix("until-").and_then(|ms| ms.parse().ok());
        return Some(until.map_or_else(|| Object::Use(id.to_string()), Object::UsesUntil));
    }
    if let Some(claim) = name.strip_prefix("claims/") {
        let (split, number, attempt) = numbered(claim.strip_suffix(".json")?)?;
        return Some(Object::Claim { split, number, attempt });
    }
    let part = name.strip_prefix("parts/")?;
    if let Some(commit) = part.strip_suffix(".commit") {
        let (split, generation, attempt) = numbered(commit.strip_prefix('_').unwrap_or(commit))?;
        return Some(Object::Commit { split, generation, attempt });
    }
    let stem = Format::ALL.iter().find_map(|f| part.strip_suffix(f.as_str())?.strip_suffix('.'))?;
    let (split, attempt) = stem.split_once('-')?;
    Some(Object::Part { split: SplitKey::try_from(split.to_string()).ok()?, attempt: attempt.to_string() })
}

fn numbered(stem: &str) -> Option<(SplitKey, Generation, Option<String>)> {
    let (split, rest) = stem.split_once('-')?;
    let (number, attempt) = match rest.split_once('-') {
        Some((n, a)) => (n, Some(a.to_string())),
        None => (rest, None),
    };
    let number = number.parse().ok().filter(|n| *n > 0)?;
    Some((SplitKey::try_from(split.to_string()).ok()?, number, attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_round() {
        for root in ["", "a/b"] {
            let layout = Layout::new(&Path::from(root));
            let (of, split) = (Fingerprint(7), SplitKey(9));
            let cases = [
                (layout.manifest(of, 12), Object::Manifest(12)),
                (
                    layout.part(of, split, "ab12", Format::Parquet),
                    Object::Part { split, attempt: "ab12".into() },
                ),
                (layout.commit(of, split, 3, None), Object::Commit { split, generation: 3, attempt: None }),
                (
                    layout.commit(of, split, 3, Some("x")),
                    Object::Commit { split, generation: 3, attempt: Some("x".into()) },
                ),
                (layout.claim(of, split, 1, None), Object::Claim { split, number: 1, attempt: None }),
                (layout.usage(of, "w-1"), Object::Use("w-1".into())),
                (layout.uses_until(of, 17), Object::UsesUntil(17)),
                (layout.pin(of), Object::Pin),
                (layout.set(of), Object::Set),
                (layout.member(of, "ab12", split), Object::Set),
                (layout.folder(of).join("parts").join("junk"), Object::Other),
                (layout.folder(of).join("manifest-x.json"), Object::Other),
            ];
            for (path, want) in cases {
                assert_eq!(layout.parse(&path), Some((of, want)), "{path}");
                assert_eq!(layout.absolute(layout.relative(&path).unwrap()), path);
            }
            assert_eq!(layout.parse(&layout.writer("w")), None);
            let before = layout.commit_before(of, split, 3, None);
            let commit = Object::Commit { split, generation: 3, attempt: None };
            assert_eq!(layout.parse(&before), Some((of, commit)), "records of earlier versions are read");
        }
    }
}
