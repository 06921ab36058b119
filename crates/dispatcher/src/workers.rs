//! The configured list of workers: their positions are the shards of the static processing modes.

use caju_types::{Error, Result};

/// The most workers of a list. It only catches nonsense.
const MAX_WORKERS: usize = 65_536;

/// The workers that a dispatcher is configured with, in order.
///
/// ```
/// use caju_dispatcher::WorkerList;
/// let list = WorkerList::new(vec!["host-a:6000".into(), "host-b:%port%".into()])?;
/// assert!(list.fits(0, "host-a:6000"));
/// assert!(list.fits(1, "host-b:41234"));
/// assert!(!list.fits(1, "host-c:41234"));
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerList {
    patterns: Vec<String>,
    is_open: bool,
}

impl WorkerList {
    /// A list of addresses `HOST:PORT`. The port may be `%port%` or `%port_NAME%`, which fits any port; `*` fits any address.
    /// No other worker may register.
    ///
    /// # Errors
    /// `InvalidArgument` for an entry that is no address, and for an address that is given twice.
    pub fn new(patterns: Vec<String>) -> Result<Self> {
        if patterns.len() > MAX_WORKERS {
            return Err(Error::invalid(format!(
                "a list of {} workers; the most is {MAX_WORKERS}",
                patterns.len()
            )));
        }
        for (i, pattern) in patterns.iter().enumerate() {
            check(pattern)?;
            if !has_wildcard(pattern) && patterns[..i].contains(pattern) {
                return Err(Error::invalid(format!(
                    "the worker `{pattern}` is in the list twice; remove one"
                )));
            }
        }
        Ok(Self { patterns, is_open: false })
    }

    /// A list of the first `n` workers, whatever their addresses are. More may register; they have no shard.
    pub fn first(n: u32) -> Self {
        Self { patterns: (0..n).map(|_| "*".to_string()).collect(), is_open: true }
    }

    /// The number of workers, which is the number of shards.
    pub fn len(&self) -> usize {
        self.patterns.len()
    }

    /// Whether no list is configured: then any worker may register, and there are no shards.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether workers that fit no position may register.
    pub fn is_open(&self) -> bool {
        self.is_open || self.patterns.is_empty()
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[String] {
        &self.patterns
    }

    /// Whether an address fits a position.
    pub fn fits(&self, position: u32, address: &str) -> bool {
        let pattern = usize::try_from(position).ok().and_then(|i| self.patterns.get(i));
        pattern.is_some_and(|p| fits(p, address))
    }

    /// The positions that an address fits: the one that names it, or else those with wildcards.
    pub(crate) fn positions<'a>(&'a self, address: &'a str) -> impl Iterator<Item = u32> + 'a {
        let named = self.patterns.iter().position(|p| p == address);
        let fitting = move |(i, p): (usize, &String)| match named {
            Some(named) => i == named,
            None => fits(p, address),
        };
        (0u32..)
            .zip(self.patterns.iter().enumerate())
            .filter(move |(_, entry)| fitting(*entry))
            .map(|(i, _)| i)
    }
}

fn check(pattern: &str) -> Result<()> {
    if pattern == "*" {
        return Ok(());
    }
    let port = |p: &str| is_wildcard(p) || p.parse::<u16>().is_ok_and(|p| p != 0);
    match pattern.rsplit_once(':') {
        Some((host, p)) if is_host(host) && port(p) => Ok(()),
        _ => Err(Error::invalid(format!(
            "the worker `{pattern}` of the list is not HOST:PORT; the port may be `%port%`, and `*` alone fits any address"
        ))),
    }
}

/// A name, an address of version 4, or one of version 6 in brackets.
fn is_host(host: &str) -> bool {
    let plain = !host.contains([':', '%', '/', ' ']);
    !host.is_empty() && host != "*" && (plain || host.starts_with('[') && host.ends_with(']'))
}

/// `%port%` or `%port_NAME%`.
fn is_wildcard(port: &str) -> bool {
    let name = port.strip_prefix("%port").and_then(|p| p.strip_suffix('%'));
    name.is_some_and(|n| {
        n.is_empty() || n.len() > 1 && n.starts_with('_') && n[1..].chars().all(|c| c.is_ascii_alphanumeric())
    })
}

fn has_wildcard(pattern: &str) -> bool {
    pattern == "*" || pattern.rsplit_once(':').is_some_and(|(_, port)| is_wildcard(port))
}

fn fits(pattern: &str, address: &str) -> bool {
    if pattern == "*" || pattern == address {
        return true;
    }
    match (pattern.rsplit_once(':'), address.rsplit_once(':')) {
        (Some((host, port)), Some((theirs, _))) => is_wildcard(port) && host == theirs,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> Result<WorkerList> {
        WorkerList::new(entries.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn sta_18_entries_that_are_no_addresses_are_refused() {
        for bad in [
            "localhost",
            "localhost:",
            ":7000",
            "localhost:0",
            "localhost:%port",
            "localhost:%port_%",
            "a:%p%",
            "a:%port:1",
            "*:%port%",
            "*:7000",
        ] {
            let e = list(&[bad]).unwrap_err();
            assert!(e.message().contains(bad), "{e}");
        }
        assert!(list(&["a:1", "a:1"]).is_err());
        assert!(list(&["a:%port%", "a:%port%", "*"]).is_ok());
    }

    #[test]
    fn the_named_position_comes_before_wildcards() {
        let list = list(&["localhost:%port%", "localhost:7001", "localhost:%port_b%"]).unwrap();
        assert_eq!(list.positions("localhost:7001").collect::<Vec<_>>(), [1]);
        assert_eq!(list.positions("localhost:9").collect::<Vec<_>>(), [0, 2]);
        assert_eq!(list.positions("elsewhere:9").count(), 0);
        assert!(
            WorkerList::first(2).fits(1, "in-process:3") && !WorkerList::first(2).fits(2, "in-process:3")
        );
    }
}
