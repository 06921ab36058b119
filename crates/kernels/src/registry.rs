//! The functions that expressions may call, and where they run.

use std::sync::Arc;

use caju_pipeline::{DatasetDef, StageOp, content_name};
use caju_runtime::IsolatedThreads;
use caju_types::{Fingerprint, Result, hash128};

use crate::guard::{PatternSizes, Patterns};
use crate::limits::Limits;
use crate::sql::{self, Builtins};

/// Definitions that are bound concurrently. With two, a slow one does not delay the next. More would take cores from
/// running tasks.
const MAX_CONCURRENT_BINDS: usize = 2;

/// The functions that expressions may call: DataFusion's immutable scalar functions and our kernels. A clone is cheap.
///
/// ```
/// use std::sync::Arc;
/// use arrow::array::{AsArray, Int32Array, RecordBatch};
/// use arrow::datatypes::Float64Type;
/// use caju_kernels::{Limits, Registry};
///
/// let x = Arc::new(Int32Array::from(vec![Some(0), None, Some(1)])) as _;
/// let batch = RecordBatch::try_from_iter([("x", x)]).unwrap();
/// let registry = Registry::new(Limits::default());
/// let bound = registry.bind("steps[0].map", &[("y".into(), "ln(x + 1)".into())], &batch.schema())?;
/// let y = bound.evaluate(&batch, None).unwrap();
/// let y = y[0].as_primitive::<Float64Type>();
/// assert_eq!(y.iter().collect::<Vec<_>>(), [Some(0.0), None, Some(2f64.ln())]);
///
/// let e = registry.bind("steps[0].map", &[("y".into(), "lnn(x)".into())], &batch.schema()).unwrap_err();
/// assert_eq!(e.to_string(), "steps[0].map.y: unknown function `lnn` at column 1; did you mean `ln`?");
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Clone)]
pub struct Registry {
    pub(crate) inner: Arc<Inner>,
    python: Option<caju_functions::Pool>,
    /// Whether Python functions come from clients, and not from the user of this process.
    runs_foreign_code: bool,
    /// The patterns of the definition for which this registry is; none if it is for any.
    patterns: Option<Arc<Patterns>>,
}

pub(crate) struct Inner {
    pub(crate) builtins: Builtins,
    pub(crate) limits: Limits,
    threads: IsolatedThreads,
    /// Whether nested image operations become one function, and some calls of DataFusion's functions are replaced by faster
    /// ones. Off only in tests, to compare.
    pub(crate) fuse: bool,
    pattern_sizes: Arc<PatternSizes>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

/// Visits the Python functions of a definition, in order.
fn payloads(def: &DatasetDef, each: &mut impl FnMut(&[u8])) {
    def.source.children().iter().for_each(|child| payloads(child, each));
    for stage in &def.stages {
        if let StageOp::Python(f) = &stage.op {
            each(&f.payload);
        }
    }
}

impl Registry {
    /// All functions, with these limits.
    pub fn new(limits: Limits) -> Self {
        Self::with(limits, true)
    }

    fn with(limits: Limits, fuse: bool) -> Self {
        let threads =
            IsolatedThreads::new("bind", MAX_CONCURRENT_BINDS, limits.bind_timeout, sql::STACK_BYTES);
        Self {
            inner: Arc::new(Inner {
                builtins: Builtins::new(),
                limits,
                threads,
                fuse,
                pattern_sizes: Arc::default(),
            }),
            python: None,
            runs_foreign_code: false,
            patterns: None,
        }
    }

    /// The limits of the process.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Runs work that reads or binds a client's definition on a thread of its own: two at a time, within
    /// [`Limits::bind_timeout`]. Async code calls the other functions of this type in here. `what` names the work in
    /// errors.
    ///
    /// # Errors
    /// Those of `work`, and `DeadlineExceeded`.
    pub async fn run_isolated<T, F>(&self, what: impl std::fmt::Display, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        self.inner.threads.run(what, work).await
    }

    /// The threads of [`Registry::run_isolated`], with their bound.
    pub fn isolated_threads(&self) -> IsolatedThreads {
        self.inner.threads.clone()
    }

    /// Adds the Python functions of this process's user, which run in this pool.
    #[must_use]
    pub fn with_python(mut self, pool: caju_functions::Pool) -> Self {
        self.python = Some(pool);
        self
    }

    /// Adds Python functions of clients, which run in this pool. The fingerprint of their stored rows covers the functions
    /// as they were sent: a version that the definition gives is not trusted.
    #[must_use]
    pub fn with_python_of_others(self, pool: caju_functions::Pool) -> Self {
        Self { runs_foreign_code: true, ..self.with_python(pool) }
    }

    /// Whether Python functions come from clients, and not from the user of this process.
    pub(crate) fn runs_foreign_code(&self) -> bool {
        self.runs_foreign_code
    }

    /// The pool of Python functions; none if they are not allowed.
    pub fn python(&self) -> Option<&caju_functions::Pool> {
        self.python.as_ref()
    }

    /// This registry, with Python processes of its own for one definition. Functions of other definitions never run
    /// in them. The regular expressions that it binds are bounded together.
    #[must_use]
    pub fn for_definition(&self, def: &DatasetDef) -> Self {
        let definition = self.payloads(def).map_or(0, |named| named.0);
        let python = self.python.as_ref().map(|pool| pool.for_definition(definition));
        let (inner, runs_foreign_code) = (Arc::clone(&self.inner), self.runs_foreign_code);
        let patterns = Some(Arc::new(Patterns::new(&inner.pattern_sizes)));
        Self { inner, python, runs_foreign_code, patterns }
    }

    /// The patterns that were bound with the next expression: those of its definition, or none.
    pub(crate) fn patterns(&self) -> Arc<Patterns> {
        self.patterns.clone().unwrap_or_else(|| Arc::new(Patterns::new(&self.inner.pattern_sizes)))
    }

    /// The hash of a definition's Python functions as they were sent; none if it has no such functions.
    pub fn payloads(&self, def: &DatasetDef) -> Option<Fingerprint> {
        let mut named = Vec::new();
        payloads(def, &mut |payload| named.extend_from_slice(content_name(payload).as_bytes()));
        (!named.is_empty()).then(|| Fingerprint(hash128(&named)))
    }

    /// A registry that neither fuses nor replaces functions.
    #[cfg(test)]
    pub(crate) fn without_fusion(limits: Limits) -> Self {
        Self::with(limits, false)
    }
}
