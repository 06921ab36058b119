//! Patterns over keys.

use caju_types::{Error, Result};
use globset::{GlobBuilder, GlobMatcher, escape};

use super::url::StoreUrl;

/// The characters that make a path a pattern.
const META: [char; 4] = ['*', '?', '[', '{'];

/// Whether a path holds a glob.
pub(super) fn is_glob(path: &str) -> bool {
    path.contains(META)
}

/// Whether a segment of a path could be a name with brackets or braces rather than a pattern. A segment whose only
/// globs are `*` and `?` matches its own name anyway.
pub(super) fn may_be_literal(segment: &str) -> bool {
    segment.contains(['[', '{'])
}

/// What the names of files and folders start with that are no data but notes about it, as `_SUCCESS`, `_temporary`
/// and `.crc` files are.
const HIDDEN: [char; 2] = ['.', '_'];

/// Whether a name is passed over where nobody asked for it by that character.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with(HIDDEN)
}

/// Whether files that `path` names (a file, a folder or a pattern) may lie at or below `folder`, or `folder` within the
/// folder that `path` names.
///
/// # Errors
/// `InvalidArgument` for a path that is none, or a pattern that is not valid.
pub fn may_lie_in(path: &str, folder: &StoreUrl) -> Result<bool> {
    let url = StoreUrl::parse(path)?;
    // A name with brackets may also be that of a file.
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

/// What lies directly in `v1` below the root of a cache or a save, next to the fingerprints.
const LAYOUT: [&str; 3] = ["writers", "plans", "listings"];

/// Whether a key below a listed folder is one that a cache or a save wrote there: its parts are rows of other
/// pipelines, never rows of the folder.
pub(super) fn is_stored_layout(below: &str) -> bool {
    if below.ends_with(".commit") {
        return true;
    }
    let is_fingerprint = |s: &str| s.len() == 32 && s.bytes().all(|b| b.is_ascii_hexdigit());
    let mut segments = below.split('/').peekable();
    while let Some(segment) = segments.next() {
        if segment == "v1" && segments.peek().is_some_and(|s| is_fingerprint(s) || LAYOUT.contains(s)) {
            return true;
        }
    }
    false
}

/// A pattern over keys: `*` and `?` stay within one segment, `**` crosses, `{a,b}` and `[a-z]` choose. Names that
/// start with `.` or `_` match only where the pattern's own segment does too.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The folder in front of the first segment with a glob; everything that matches lies below it.
    pub(super) base: String,
    /// The text in front of the first glob; every key that matches starts with it.
    pub(super) literal: String,
    matcher: GlobMatcher,
    /// Which of [`HIDDEN`] some segment of the pattern starts with.
    asked: Vec<char>,
    /// One matcher per segment below `base`, where the pattern has no segment that can cross folders.
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
    /// The pattern of a key whose first `literal` bytes are taken as they are.
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
        let asked = rest.split('/').filter_map(|s| s.chars().next().filter(|c| HIDDEN.contains(c))).collect();
        let literal = pattern[..meta].to_string();
        let matcher = compile(&(escape(taken) + globs))?;
        Ok(Self { base, literal, matcher, asked, segments })
    }

    /// Whether a whole key matches.
    pub(super) fn matches(&self, key: &str) -> bool {
        let below = key.strip_prefix(self.base.as_str()).unwrap_or(key);
        let hidden = |name: &str| is_hidden(name) && !name.starts_with(self.asked.as_slice());
        self.matcher.is_match(key) && !below.split('/').any(hidden)
    }

    /// Whether anything below this folder (so many levels below `base`, with this name) can match.
    pub(super) fn may_enter(&self, level: usize, name: &str) -> bool {
        match &self.segments {
            Some(s) => level + 1 < s.len() && s[level].is_match(name),
            None => true,
        }
    }
}
