//! Patterns over keys.

use caju_types::{Error, Result};
use globset::{GlobBuilder, GlobMatcher, escape};

use super::url::StoreUrl;

/// The characters that make a path a pattern.
const META: [char; 4] = ['*', '?', '[', '{'];

/// Whether a path contains a glob.
pub(super) fn is_glob(path: &str) -> bool {
    path.contains(META)
}

/// Whether a segment of a path may be a name with brackets or braces instead of a pattern. A segment whose only globs are
/// `*` and `?` matches its own name anyway.
pub(super) fn may_be_literal(segment: &str) -> bool {
    segment.contains(['[', '{'])
}

/// First characters of the names of files and folders that are no data but metadata: `_SUCCESS`, `_temporary`, `.crc`.
const HIDDEN: [char; 2] = ['.', '_'];

/// Whether a name is skipped, unless a pattern names its first character.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with(HIDDEN)
}

/// Whether files that `path` names (a file, a folder or a pattern) may be at or below `folder`, or `folder` may be within
/// the folder that `path` names.
///
/// # Errors
/// `InvalidArgument` for an invalid path or pattern.
pub fn may_lie_in(path: &str, folder: &StoreUrl) -> Result<bool> {
    let url = StoreUrl::parse(path)?;
    // A name with brackets may be that of a file, too.
    if url.is_below(folder) || folder.is_below(&url) {
        return Ok(true);
    }
    if !is_glob(&url.key) {
        return Ok(false);
    }
    let pattern = Pattern::new(&url.key, 0)?;
    let base = url.with_key(pattern.base.clone());
    if base.is_below(folder) {
        return Ok(true);
    }
    let segments = |key: &str| key.split('/').filter(|s| !s.is_empty()).count();
    let depth = segments(&folder.key).saturating_sub(segments(&base.key));
    Ok(folder.is_below(&base) && pattern.segments.is_none_or(|s| s.len() > depth))
}

/// The folders of records in `v1` below the root of a cache or a save.
const RECORD_FOLDERS: [&str; 3] = ["writers", "plans", "listings"];

/// How a record of a cache or a save begins, before the 32 digits of its seal.
const SEAL: &[u8] = b"{\"seal\":\"";

/// The bytes of a file that show whether it is a record.
pub(super) const SEALED_BYTES: u64 = SEAL.len() as u64 + 33;

/// Who wrote a file, as far as its name shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A user: it is read as any other.
    User,
    /// A cache or a save: the name consists of a fingerprint and the key of a split.
    Stored,
    /// A cache or a save if it begins as their records do, see [`is_sealed`]. Otherwise a user.
    StoredIfSealed,
}

fn is_hash(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Who wrote the file with this key below a listed folder. What caches and saves store are rows of other pipelines, never
/// rows of the folder. A user's folders may have the names of theirs, so a folder alone shows nothing.
pub(super) fn origin(below: &str) -> Origin {
    let segments: Vec<&str> = below.split('/').collect();
    if segments.last() == Some(&"save.json") {
        return Origin::StoredIfSealed;
    }
    let found = segments.iter().enumerate().filter(|(_, name)| **name == "v1");
    let kinds = found.map(|(i, _)| origin_in_v1(segments.get(i + 1..).unwrap_or_default()));
    kinds.fold(Origin::User, |all, kind| match (all, kind) {
        (Origin::Stored, _) | (_, Origin::Stored) => Origin::Stored,
        (Origin::User, kind) => kind,
        (all, _) => all,
    })
}

fn origin_in_v1(names: &[&str]) -> Origin {
    let is_record = |name: &str| name.ends_with(".json");
    match names {
        [of, "parts", name] if is_hash(of) && is_part(name) => Origin::Stored,
        [of, "pin"] if is_hash(of) => Origin::StoredIfSealed,
        [of, name] | [of, "claims" | "uses" | "sets", name] if is_hash(of) && is_record(name) => {
            Origin::StoredIfSealed
        }
        [folder, name] if RECORD_FOLDERS.contains(folder) && is_record(name) => Origin::StoredIfSealed,
        _ => Origin::User,
    }
}

/// `SPLITKEY-ATTEMPT.arrow` and its like, and `_SPLITKEY-1.commit`.
fn is_part(name: &str) -> bool {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let name = name.strip_prefix('_').unwrap_or(name);
    let Some((stem, "arrow" | "parquet" | "commit")) = name.rsplit_once('.') else { return false };
    stem.split_once('-').is_some_and(|(split, attempt)| is_hash(split) && is_hex(attempt))
}

/// Whether a file with this key that begins so is a record of a cache or a save. `{}` is the whole of a pin.
pub(super) fn is_sealed(key: &str, start: &[u8]) -> bool {
    let seal = start.strip_prefix(SEAL).and_then(|rest| rest.split_at_checked(32));
    start == b"{}" && key.ends_with("/pin")
        || seal.is_some_and(|(seal, rest)| {
            rest.starts_with(b"\"") && std::str::from_utf8(seal).is_ok_and(is_hash)
        })
}

/// A pattern over keys. `*` and `?` match within one segment, `**` matches across segments, `{a,b}` and `[a-z]` are
/// alternatives. Names that start with `.` or `_` match only a segment of the pattern that starts with it, too.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The folder before the first segment with a glob. All matching keys are below it.
    pub(super) base: String,
    /// The text before the first glob. All matching keys start with it.
    pub(super) literal: String,
    matcher: GlobMatcher,
    /// Those of [`HIDDEN`] with which a segment of the pattern starts.
    visible: Vec<char>,
    /// One matcher per segment below `base`; none if a segment can match across folders.
    segments: Option<Vec<GlobMatcher>>,
}

fn compile(glob: &str) -> Result<GlobMatcher> {
    GlobBuilder::new(glob)
        .literal_separator(true)
        .empty_alternates(true)
        .build()
        .map(|g| g.compile_matcher())
        .map_err(|e| Error::invalid(format!("`{glob}` is not a valid pattern: {}", e.kind())))
}

impl Pattern {
    /// The pattern of a key whose first `literal` bytes are literal.
    pub(super) fn new(pattern: &str, literal: usize) -> Result<Self> {
        let (taken, globs) = pattern.split_at(literal);
        let meta = literal + globs.find(META).unwrap_or(globs.len());
        let base_end = pattern[..meta].rfind('/');
        let base = base_end.map_or("", |i| &pattern[..i]).to_string();
        let rest = base_end.map_or(pattern, |i| &pattern[i + 1..]);
        let braces_cross = {
            let mut depth = 0i32;
            rest.chars().any(|c| {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    _ => {}
                }
                c == '/' && depth > 0
            })
        };
        let segments = if rest.contains("**") || braces_cross {
            None
        } else {
            Some(rest.split('/').map(compile).collect::<Result<Vec<_>>>()?)
        };
        let visible =
            rest.split('/').filter_map(|s| s.chars().next().filter(|c| HIDDEN.contains(c))).collect();
        let literal = pattern[..meta].to_string();
        let matcher = compile(&(escape(taken) + globs))?;
        Ok(Self { base, literal, matcher, visible, segments })
    }

    /// Whether a whole key matches.
    pub(super) fn matches(&self, key: &str) -> bool {
        let below = key.strip_prefix(self.base.as_str()).unwrap_or(key);
        self.matcher.is_match(key) && !below.split('/').any(|name| self.is_hidden(name))
    }

    /// Whether a key below the folder `name`, which is `level` levels below `base`, can match.
    pub(super) fn may_enter(&self, level: usize, name: &str) -> bool {
        match &self.segments {
            Some(s) => level + 1 < s.len() && s[level].is_match(name),
            None => !self.is_hidden(name),
        }
    }

    /// Whether keys match up to some number of folders alone.
    pub(super) fn is_bounded(&self) -> bool {
        self.segments.is_some()
    }

    /// Whether a name is skipped: no segment of the pattern begins with its first character.
    fn is_hidden(&self, name: &str) -> bool {
        is_hidden(name) && !name.starts_with(self.visible.as_slice())
    }
}

/// The path with the symbolic links resolved in what exists of its local folders, up to the first glob. Others are given
/// back. Blocking.
///
/// # Errors
/// `InvalidArgument` for an invalid path.
pub fn without_links(path: &str) -> Result<String> {
    let url = StoreUrl::parse(path)?;
    if !url.is_local() {
        return Ok(path.to_owned());
    }
    let real = |key: &str| real_path(&url.with_key(key).local_path());
    let plain = real(&url.key);
    // What is named as it is written goes before the pattern.
    if !is_glob(&url.key) || url.local_path().exists() {
        return Ok(url.with_key(plain.trim_matches('/')).to_string());
    }
    let base = Pattern::new(&url.key, 0)?.base;
    let rest = url.key.get(base.len()..).unwrap_or_default().trim_start_matches('/');
    let base = real(&base);
    let key = format!("{}/{rest}", escape(base.trim_matches('/')));
    // A pattern that ends so is refused where it is listed.
    let end = if path.ends_with('/') { "/" } else { "" };
    Ok(format!("{}{end}", url.with_key(key.trim_start_matches('/'))))
}

/// The path with its links resolved, as far as it exists.
fn real_path(path: &std::path::Path) -> String {
    let real = path.ancestors().find_map(|above| {
        let real = std::fs::canonicalize(above).ok()?;
        Some(real.join(path.strip_prefix(above).ok()?))
    });
    real.as_deref().unwrap_or(path).to_string_lossy().into_owned()
}
