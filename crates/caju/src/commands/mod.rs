//! The commands.

mod announce;
mod bench;
mod bottleneck;
mod boundaries;
mod cache;
mod check;
mod decision;
mod dispatcher;
mod epochs;
mod explain;
mod r#gen;
mod order;
mod pipeline_file;
mod plan;
mod profile;
mod quickstart;
mod read;
mod run;
mod save;
mod scale;
mod serve;
mod setting;
mod shared;
mod state_file;
mod status;
mod summary;
mod tail;
mod up;
mod worker;

use std::ffi::OsString;

use caju_types::Result;

use crate::cli::{Cli, Command};

/// How this process was started.
#[derive(Debug, Clone)]
pub(crate) struct OwnCommand {
    /// This program; or an interpreter, with the arguments that make it run this program.
    pub(crate) program: Vec<OsString>,
    /// The arguments of the command.
    pub(crate) args: Vec<OsString>,
}

impl OwnCommand {
    /// The command line that starts the same again.
    fn again(self) -> Vec<OsString> {
        [self.program, self.args].concat()
    }
}

/// Runs the command, to its exit code.
///
/// # Errors
/// What the command says; the kind becomes the exit code.
pub(crate) async fn run(cli: Cli, own: Option<OwnCommand>) -> Result<u8> {
    let Cli { global, command } = cli;
    shared::set_limits(&global.bounds);
    match &command {
        Command::Cache(args) => return Box::pin(cache::run(&global, &args.command)).await,
        Command::Gen(args) => return Box::pin(r#gen::run(&global, args)).await,
        Command::Quickstart(args) => return Box::pin(quickstart::run(&global, args)).await,
        _ => {}
    }
    match command {
        // They have exit codes of their own, above.
        Command::Cache(_) | Command::Gen(_) | Command::Quickstart(_) => Ok(()),
        Command::Check(args) => Box::pin(check::run(&args)).await,
        Command::Plan(args) => plan::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Profile(args) => Box::pin(profile::run(&global, &args)).await,
        Command::Explain(args) => Box::pin(explain::run(&global, &args)).await,
        Command::Bench(args) => Box::pin(bench::run(&global, &args, own.map(OwnCommand::again))).await,
        Command::Read(args) => Box::pin(read::run(&global, &args)).await,
        Command::Save(args) => Box::pin(save::run(&global, &args)).await,
        Command::Status(args) => Box::pin(status::run(&args)).await,
        Command::Run(args) => Box::pin(run::run(&global, &args)).await,
        Command::Dispatcher(args) => Box::pin(dispatcher::run(&args)).await,
        Command::Up(args) => Box::pin(up::run(&global, &args, own)).await,
        Command::Worker(args) => Box::pin(worker::run(&args)).await,
    }
    .map(|()| 0)
}
