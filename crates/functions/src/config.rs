//! The settings of a pool.

use std::time::Duration;

/// The environment variables that the processes of functions inherit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Environment {
    /// All variables: the functions belong to the user of this process.
    Inherited,
    /// The variables that an interpreter needs to start, and these. The functions come from clients, which must not see
    /// credentials and settings of the server.
    Clean(Vec<String>),
}

/// Variables of a clean environment: paths of programs, libraries and home, languages, and time zones.
const CLEAN_VARIABLES: [&str; 11] = [
    "PATH",
    "HOME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONHASHSEED",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
];

impl Environment {
    /// Whether processes inherit a variable.
    pub(crate) fn passes(&self, name: &str) -> bool {
        match self {
            Environment::Inherited => true,
            Environment::Clean(more) => {
                CLEAN_VARIABLES.contains(&name) || name.starts_with("LC_") || more.iter().any(|m| m == name)
            }
        }
    }
}

/// The settings of a pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The interpreter. It needs the package `caju`.
    pub python: String,
    /// The most processes that work at once. They are started when they are needed.
    pub processes: usize,
    /// Bounds the processes that exist, including idle ones: at most this many times `processes`.
    pub definitions: usize,
    /// The idle time after which a process is ended.
    pub idle: Duration,
    /// The environment variables that its processes inherit.
    pub environment: Environment,
    /// The module path for functions' imports; empty for the interpreter's own.
    pub path: Vec<String>,
    /// The time that a function may take for one row, or for a batch if it takes batches. A function may have its own.
    pub timeout: Duration,
    /// The time that a process may take to start.
    pub start_timeout: Duration,
}

impl PoolConfig {
    /// Settings for up to `processes` working processes of `python`, in a clean environment, with a minute per row.
    pub fn new(python: impl Into<String>, processes: usize) -> Self {
        Self {
            python: python.into(),
            processes: processes.max(1),
            definitions: 4,
            idle: Duration::from_secs(60),
            environment: Environment::Clean(Vec::new()),
            path: Vec::new(),
            timeout: Duration::from_secs(60),
            start_timeout: Duration::from_secs(60),
        }
    }
}
