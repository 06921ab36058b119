//! One feature set of shared libraries for every package of the workspace.
//!
//! This crate has no code. Its dependencies name the features that only some packages of the workspace ask for, so that
//! `cargo build -p caju`, `-p caju-benches`, `-p caju-python` and `--workspace` share every library that is built.
//! Without it a second command compiles Arrow and DataFusion again. The pattern is that of `cargo-hakari`.
