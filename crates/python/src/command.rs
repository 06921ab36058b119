//! The `caju` command, brought by the package.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command that the arguments say, the program's name first; its exit code.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| caju_command::run(args))
}
