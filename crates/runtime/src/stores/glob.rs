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

/// The folders in `v1` below the root of a cache or a save, apart from those of fingerprints.
const LAYOUT_FOLDERS: [&str; 3] = ["writers", "plans", "listings"];

/// Whether a key below a listed folder was written by a cache or a save. Such parts are rows of other pipelines, never rows
/// of the folder.
pub(super) fn is_stored_layout(below: &str) -> bool {
    if below.ends_with(".commit") {
        return true;
    }
    let is_fingerprint = |s: &str| s.len() == 32 && s.bytes().all(|b| b.is_ascii_hexdigit());
    let mut segments = below.split('/').peekable();
    while let Some(segment) = segments.next() {
        if segment == "v1" && segments.peek().is_some_and(|s| is_fingerprint(s) || LAYOUT_FOLDERS.contains(s))
        {
            return true;
        }
    }
    false
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
        let hidden = |name: &str| is_hidden(name) && !name.starts_with(self.visible.as_slice());
        self.matcher.is_match(key) && !below.split('/').any(hidden)
    }

    /// Whether a key below the folder `name`, which is `level` levels below `base`, can match.
    pub(super) fn may_enter(&self, level: usize, name: &str) -> bool {
        match &self.segments {
            Some(s) => level + 1 < s.len() && s[level].is_match(name),
            None => true,
        }
    }
}
