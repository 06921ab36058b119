//! What each command does.

mod r#gen;
mod shared;

use caju_types::{Error, Result};

use crate::cli::{Cli, Command};

/// Runs the command.
///
/// # Errors
/// What the command says; the kind becomes the exit code.
pub(crate) async fn run(cli: Cli) -> Result<()> {
    let Cli { global, command } = cli;
    match command {
        Command::Gen(args) => Box::pin(r#gen::run(&global, &args)).await,
        _ => Err(Error::unimplemented("this command")),
    }
}
