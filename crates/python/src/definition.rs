//! Definitions: checks, fingerprints, descriptions and YAML of the tree that Python holds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use caju_engine::BoundPipeline;
use caju_functions::{Environment, Pool, PoolConfig};
use caju_kernels::{Limits, Registry};
use caju_pipeline::DatasetDef;
use caju_runtime::{Access, IoCounters, Stores};
use caju_sources::{SourceContext, SourceLimits};
use caju_types::Result;
use caju_wire::schema_to_ipc;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bounds::Bounds;
use crate::errors::IntoPy;
use crate::runtime::wait;

/// The functions that expressions may call, with the default bounds.
fn registry() -> Registry {
    Registry::new(Limits::default())
}

/// Where Python functions come from, which decides what they see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FunctionOrigin {
    /// This process: they get its environment and its module path.
    ThisProcess,
    /// Any reader that reaches the server: they get a clean environment and installed packages.
    Readers,
}

/// The functions that expressions may call within `limits`, and Python functions, in up to `processes` processes of this
/// interpreter.
///
/// # Errors
/// `AttributeError` if the interpreter does not know its own path.
pub(crate) fn registry_with_python(
    py: Python<'_>,
    limits: Limits,
    processes: usize,
    origin: FunctionOrigin,
) -> PyResult<Registry> {
    let registry = Registry::new(limits);
    let sys = py.import("sys")?;
    let python: Option<String> = sys.getattr("executable")?.extract()?;
    let config = PoolConfig::new(python.unwrap_or_else(|| "python3".to_string()), processes);
    if origin == FunctionOrigin::Readers {
        return Ok(registry.with_python_of_others(Pool::new(config)));
    }
    // An entry that is not text cannot be passed to a process.
    let path = sys.getattr("path")?.try_iter()?.filter_map(|entry| entry.ok()?.extract().ok()).collect();
    let config = PoolConfig { environment: Environment::Inherited, path, ..config };
    Ok(registry.with_python(Pool::new(config)))
}

/// Stores without restrictions, with the options in the environment of the process.
///
/// # Errors
/// `InvalidArgument` for an option that a store refuses.
pub(crate) fn stores() -> Result<Stores> {
    stores_within(None)
}

/// Stores with the options in the environment of the process, for a server that may use no more than this; none: whatever the process
/// may use.
///
/// # Errors
/// `InvalidArgument` for an option that a store refuses, and for an entry that is no URL or absolute path.
pub(crate) fn stores_within(access: Option<Access>) -> Result<Stores> {
    let options: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?.to_lowercase(), v.into_string().ok()?)))
        .filter(|(k, _)| {
            ["aws_", "google_", "azure_"].iter().any(|p| k.starts_with(p)) && Stores::known_option(k)
        })
        .collect();
    Stores::new(options, access)
}

fn parse(text: &str) -> Result<DatasetDef> {
    DatasetDef::from_json_str(text)
}

/// The definition with all defaults.
///
/// # Errors
/// `InvalidArgument` that names the place and the mistake.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, definition: &str) -> PyResult<String> {
    Ok(parse(definition).into_py(py)?.to_json().to_string())
}

/// The JSON form of a pipeline file. Relative paths are resolved against `base`.
#[pyfunction]
#[pyo3(signature = (text, base=None))]
pub(crate) fn from_yaml(py: Python<'_>, text: &str, base: Option<PathBuf>) -> PyResult<String> {
    Ok(DatasetDef::from_yaml(text, base.as_deref()).into_py(py)?.to_json().to_string())
}

/// The definition as a pipeline file.
#[pyfunction]
pub(crate) fn to_yaml(py: Python<'_>, definition: &str) -> PyResult<String> {
    parse(definition).and_then(|d| d.to_yaml()).into_py(py)
}

/// The fingerprint in hexadecimal digits, which is the same from Python, YAML and Rust.
#[pyfunction]
pub(crate) fn fingerprint(py: Python<'_>, definition: &str) -> PyResult<String> {
    let name = |def: DatasetDef| caju_pipeline::fingerprint(&def, &registry());
    Ok(parse(definition).and_then(name).into_py(py)?.to_string())
}

/// The name, the stage and the fingerprint of every hint, and whether stages above it are random.
#[pyfunction]
pub(crate) fn prefix_fingerprints(
    py: Python<'_>,
    definition: &str,
) -> PyResult<Vec<(String, usize, String, bool)>> {
    let all = |def: DatasetDef| caju_pipeline::prefix_fingerprints(&def, &registry());
    let hints = parse(definition).and_then(all).into_py(py)?;
    Ok(hints.into_iter().map(|h| (h.hint, h.stage_index, h.fingerprint.to_string(), h.random)).collect())
}

/// A description of the definition, one line per stage.
#[pyfunction]
pub(crate) fn describe(py: Python<'_>, definition: &str) -> PyResult<Vec<String>> {
    Ok(caju_pipeline::describe(&parse(definition).into_py(py)?))
}

/// Checks an encoding of parts, such as `arrow/none`.
#[pyfunction]
pub(crate) fn check_encoding(py: Python<'_>, encoding: &str) -> PyResult<()> {
    let known: Result<caju_cache::Encoding> = encoding.parse();
    known.map(drop).map_err(|e| e.context("encoding")).into_py(py)
}

/// Binds a definition to its source.
fn bound<T: Send + 'static>(
    py: Python<'_>,
    definition: &str,
    bounds: Option<Bounds>,
    then: impl FnOnce(&BoundPipeline) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let def = parse(definition).into_py(py)?;
    let limits = bounds.unwrap_or_default().limits(py)?;
    let ctx = SourceContext::new(Arc::new(stores().into_py(py)?), Arc::new(IoCounters::new()))
        .with_limits(SourceLimits::from_limits(&limits));
    let registry = registry_with_python(py, limits, 1, FunctionOrigin::ThisProcess)?;
    wait(py, async move {
        let bound = Box::pin(caju_engine::bind(&def, &registry, &ctx, None)).await?;
        then(&bound)
    })
}

/// The order in which the stages run, and why, for people; nothing unless the definition has the setting `reorder`.
#[pyfunction]
#[pyo3(signature = (definition, bounds=None))]
pub(crate) fn stage_order(py: Python<'_>, definition: &str, bounds: Option<Bounds>) -> PyResult<Vec<String>> {
    bound(py, definition, bounds, |bound| Ok(bound.order().lines(bound.def())))
}

/// Binds a definition to its source: the schema of the rows after the source and after each stage, as Arrow IPC streams.
#[pyfunction]
#[pyo3(signature = (definition, bounds=None))]
pub(crate) fn bind<'py>(
    py: Python<'py>,
    definition: &str,
    bounds: Option<Bounds>,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let schemas = bound(py, definition, bounds, |bound| {
        bound.stage_schemas().iter().map(|s| schema_to_ipc(s)).collect::<Result<Vec<_>>>()
    })?;
    Ok(schemas.iter().map(|s| PyBytes::new(py, s)).collect())
}
