//! Paths of sources: resolving them against the pipeline file, and refusing credentials in them.

use std::path::{Component, Path, PathBuf};

use caju_types::did_you_mean;

const SCHEMES: [&str; 12] =
    ["file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "memory", "http", "https"];

/// The names of query parameters that carry a signature or a secret.
const SECRET_PARAMETERS: [&str; 10] = [
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
    "x-goog-signature",
    "x-goog-credential",
    "awsaccesskeyid",
    "signature",
    "sig",
    "token",
    "access_token",
];

/// The absolute form of a path or pattern. URLs are not changed, and a relative path is resolved against `base`. Errors are
/// texts without a place, which the caller adds.
pub(crate) fn resolve(text: &str, base: Option<&Path>) -> Result<String, String> {
    plain(text)?;
    if scheme_of(text).is_some() {
        check(text)?;
        return Ok(text.to_owned());
    }
    if text == "~" || text.starts_with("~/") {
        return Err(format!("`{text}`: `~` is not expanded here; write the full path"));
    }
    if text.starts_with('/') {
        return Ok(normal("/", text));
    }
    let Some(base) = base else {
        return Err(format!(
            "`{text}` is a relative path, and there is no pipeline file that it could be relative to; write \
             an absolute path or a URL"
        ));
    };
    let base = absolute(base)?;
    Ok(normal(&escape(&base), text))
}

/// Checks a path that was resolved before: it is absolute, or a URL of a known scheme without credentials.
pub(crate) fn check(text: &str) -> Result<(), String> {
    plain(text)?;
    let Some((scheme, rest)) = scheme_of(text) else {
        return match text.starts_with('/') {
            true => Ok(()),
            false => Err(format!("`{text}` is neither an absolute path nor a URL")),
        };
    };
    let lower = scheme.to_ascii_lowercase();
    if !SCHEMES.contains(&lower.as_str()) {
        let known = did_you_mean(&lower, SCHEMES);
        let known =
            if known.is_empty() { "; known are file, s3, gs, az, memory, http".to_owned() } else { known };
        return Err(format!("`{scheme}://` is not a known kind of URL{known}"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    // `abfss://container@account.dfs...` names a container, not a user.
    let container = lower.starts_with("abfs") && user.is_some_and(|u| !u.contains(':'));
    // A secret may contain a `/`, which ends the authority early. The text after its colon is then no port.
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|_| !authority.ends_with(']'));
    let odd_port = port.is_some_and(|p| !p.bytes().all(|b| b.is_ascii_digit()));
    if (user.is_some() && !container) || odd_port {
        return Err(format!(
            "`{scheme}://***`: credentials do not belong into a definition; leave `user:password@` out and \
             give them to the servers through their environment (AWS_ACCESS_KEY_ID, for example)"
        ));
    }
    let query = rest.split_once('?').map_or("", |(_, q)| q);
    let secret =
        query.split(['&', '#']).filter_map(|p| p.split_once('=')).map(|(k, _)| k.to_ascii_lowercase());
    for name in secret {
        if SECRET_PARAMETERS.contains(&name.as_str()) {
            return Err(format!(
                "`{scheme}://{authority}/...`: the parameter `{name}` is a credential, which does not belong \
                 into a definition; use the plain URL and give credentials to the servers"
            ));
        }
    }
    Ok(())
}

fn plain(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("the path is empty".to_owned());
    }
    match text.chars().any(char::is_control) {
        true => Err(format!("{text:?} holds a control character")),
        false => Ok(()),
    }
}

/// The scheme of a URL, and the text after `://`.
fn scheme_of(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let mut chars = scheme.chars();
    let ok = chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    ok.then_some((scheme, rest))
}

fn absolute(base: &Path) -> Result<String, String> {
    let base: PathBuf = match base.as_os_str().is_empty() {
        true => std::path::absolute("."),
        false => std::path::absolute(base),
    }
    .map_err(|e| format!("the pipeline file's folder {} has no absolute form: {e}", base.display()))?;
    match base.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            Err(format!("the pipeline file's folder {} is not UTF-8; use an absolute URL", base.display()))
        }
    }
}

/// A folder's name as a pattern that matches only itself: glob characters are put into brackets.
fn escape(folder: &str) -> String {
    let mut out = String::with_capacity(folder.len());
    for c in folder.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '{' | '}') {
            out.extend(['[', c, ']']);
        } else {
            out.push(c);
        }
    }
    out
}

/// The path `base/text` without `.` and `..`.
fn normal(base: &str, text: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let joined = Path::new(base).components().chain(Path::new(text).components());
    for part in joined {
        match part {
            Component::Normal(name) => parts.extend(name.to_str()),
            Component::ParentDir => {
                parts.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    let folder = if text.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{folder}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_go_below_the_file() {
        let base = Some(Path::new("/data/set[1]"));
        for (text, want) in [
            ("a/*.parquet", "/data/set[[]1[]]/a/*.parquet"),
            ("./a//b", "/data/set[[]1[]]/a/b"),
            ("../a/", "/data/a/"),
            ("/x/./y/../{a,b}?.tar", "/x/{a,b}?.tar"),
            ("/../..", "/"),
            ("s3://bucket/a/../*.parquet", "s3://bucket/a/../*.parquet"),
            ("memory:///x/y", "memory:///x/y"),
            ("abfss://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net/x"),
            ("http://host:8080/a@b.csv?list=1", "http://host:8080/a@b.csv?list=1"),
        ] {
            assert_eq!(resolve(text, base).unwrap(), want);
        }
        assert!(resolve("a", None).unwrap_err().contains("relative path"));
        assert!(resolve("a", Some(Path::new(""))).unwrap().starts_with('/'));
        for bad in ["", "  ", "~/x", "a\nb"] {
            assert!(resolve(bad, base).is_err(), "{bad}");
        }
        assert!(resolve("s4://bucket/x", base).unwrap_err().contains("did you mean `s3`?"));
    }

    #[test]
    fn credentials_are_refused_and_not_repeated() {
        for bad in [
            "s3://KEY:hunter2@bucket/x",
            "s3://KEY:hun/ter2@bucket/x",
            "https://hunter2@host/x",
            "abfss://user:hunter2@account/x",
            "https://host/x.parquet?X-Amz-Signature=hunter2&a=b",
            "https://host/x.parquet?a=b&sig=hunter2",
        ] {
            let e = resolve(bad, None).unwrap_err();
            assert!(e.contains("credential") && !e.contains("hunter2") && !e.contains("ter2"), "{e}");
        }
    }
}
