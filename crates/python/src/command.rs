//! The `caju` command, which the package installs.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command line `args`, which begins with the program's name. Returns the exit code.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| caju_command::run(args))
}
