//! Where settings come from: flags, then `CAJU_*` variables, then a TOML file, then the defaults.
//!
//! Flags and variables are clap's business. A TOML file becomes the defaults of the options, before the
//! arguments are parsed, so that all three pass the same checks:
//!
//! ```toml
//! log = "info"             # an option of every command
//! [worker]                 # the options of one command, by their long names
//! dispatcher = "10.0.0.1:7070"
//! allow = ["s3://bucket/train"]
//! ```

use std::ffi::OsString;
use std::path::PathBuf;

use caju_types::{Error, Result, did_you_mean};
use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use toml::{Table, Value};

use crate::cli::Cli;
use crate::input_file;

/// The largest settings file, in bytes. A file with every setting has some thousand bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Why there is no [`Cli`].
#[derive(Debug)]
pub(crate) enum Failure {
    /// A wrong argument, or a request for help.
    Clap(clap::Error),
    /// A wrong or missing file.
    Error(Error),
}

impl From<clap::Error> for Failure {
    fn from(e: clap::Error) -> Self {
        Failure::Clap(e)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Error(e)
    }
}

/// Parses the command line (`args[0]` is the program).
pub(crate) fn parse(args: Vec<OsString>, config_variable: Option<OsString>) -> Result<Cli, Failure> {
    let mut command = with_variables(Cli::command());
    if let Some((path, table)) = load(&args, config_variable)? {
        let place = path.display().to_string();
        command = apply(command, &table, &place, &[])?;
    }
    let matches = command.try_get_matches_from(args)?;
    Ok(Cli::from_arg_matches(&matches)?)
}

/// Every long option gets the variable `CAJU_LONG_NAME`.
fn with_variables(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let Some(long) = arg.get_long() else { return arg };
            if matches!(
                arg.get_action(),
                ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
            ) {
                return arg;
            }
            // The names live as long as the process; there are a few dozen.
            let variable = |name: &str| format!("CAJU_{}", name.to_uppercase().replace('-', "_"));
            // An option that was renamed is also set by its old name, unless its new name is set.
            let old = arg.get_all_aliases().unwrap_or_default().into_iter().map(variable);
            let set = |name: &String| std::env::var_os(name).is_some();
            let name = std::iter::once(variable(long)).chain(old).find(set).unwrap_or_else(|| variable(long));
            let name: &'static str = name.leak();
            let arg = arg.env(name).hide_env(true);
            if matches!(arg.get_action(), ArgAction::SetTrue) {
                arg.value_parser(BoolishValueParser::new())
            } else {
                arg
            }
        })
        .mut_subcommands(with_variables)
}

/// The file that `--config` or the variable names, and what is in it.
fn load(args: &[OsString], variable: Option<OsString>) -> Result<Option<(PathBuf, Table)>> {
    // Only a file that was named: one in the working folder may belong to another user.
    let Some(path) = named_file(args).or(variable).map(PathBuf::from) else { return Ok(None) };
    let text = input_file::read_text(&path, MAX_BYTES)
        .map_err(|e| input_file::error(&e).context(format_args!("settings file {}", path.display())))?;
    let table = text
        .parse::<Table>()
        .map_err(|e| Error::invalid(format!("settings file {}: {e}", path.display())))?;
    Ok(Some((path, table)))
}

/// The value of `--config`, found before the real parse because that one needs it.
fn named_file(args: &[OsString]) -> Option<OsString> {
    let mut args = args.iter().skip(1).take_while(|a| *a != "--");
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().cloned();
        }
        if let Some(value) = arg.to_str().and_then(|a| a.strip_prefix("--config=")) {
            return Some(value.into());
        }
    }
    None
}

/// Turns the entries of a table into defaults of the command's options, and of its commands' options.
fn apply(mut command: Command, table: &Table, file: &str, path: &[&str]) -> Result<Command> {
    for (key, value) in table {
        let place = || format!("{file}: {}", [path, &[key.as_str()]].concat().join("."));
        if let Value::Table(inner) = value
            && let Some(sub) = command.find_subcommand(key)
        {
            let name = sub.get_name().to_owned();
            let sub = apply(sub.clone(), inner, file, &[path, &[key.as_str()]].concat())?;
            command = command.mut_subcommand(name, |_| sub);
            continue;
        }
        let long = key.replace('_', "-");
        let Some(arg) = options(&command).find(|a| is_named(a, &long)) else {
            let known = options(&command)
                .filter_map(|a| a.get_long().map(String::from))
                .chain(command.get_subcommands().map(|s| s.get_name().to_string()))
                .collect::<Vec<_>>();
            let owns = |c: &&Command| options(c).any(|a| is_named(a, &long));
            let hint = match command.get_subcommands().find(owns) {
                Some(owner) => {
                    format!(": it is an option of a command; put it under `[{}]`", owner.get_name())
                }
                None => did_you_mean(&long, known),
            };
            return Err(Error::invalid(format!("{}: unknown setting{hint}", place())));
        };
        let values =
            texts(value).ok_or_else(|| Error::invalid(format!("{}: not a value of an option", place())))?;
        check(arg, &values, &place)?;
        let id = arg.get_id().clone();
        command = command.mut_arg(id, |a| a.default_values(lasting(&values)).required(false));
    }
    Ok(command)
}

/// Defaults live as long as the process; there are a few dozen.
fn lasting(values: &[String]) -> Vec<&'static str> {
    values.iter().map(|v| &*v.clone().leak()).collect()
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|a| !matches!(a.get_long(), None | Some("help" | "version" | "config")))
}

/// Whether this is the option's name, or one that it had before.
fn is_named(arg: &Arg, name: &str) -> bool {
    arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|old| old.contains(&name))
}

/// The text of the value, as on the command line.
fn texts(value: &Value) -> Option<Vec<String>> {
    Some(match value {
        Value::String(s) => vec![s.clone()],
        Value::Integer(i) => vec![i.to_string()],
        Value::Float(f) => vec![f.to_string()],
        Value::Boolean(b) => vec![b.to_string()],
        Value::Array(items) => {
            let mut out = Vec::new();
            for item in items {
                match item {
                    Value::Array(_) | Value::Table(_) => return None,
                    scalar => out.extend(texts(scalar)?),
                }
            }
            out
        }
        Value::Datetime(_) | Value::Table(_) => return None,
    })
}

/// Parses the values as the option would, so that an error names its place in the file.
fn check(arg: &Arg, values: &[String], place: &impl Fn() -> String) -> Result<()> {
    let takes_more = matches!(arg.get_action(), ArgAction::Append)
        || arg.get_num_args().is_some_and(|n| n.max_values() > 1);
    // The library counts the values of the command line alone.
    if values.is_empty() || values.len() > 1 && !takes_more {
        let how = if takes_more { "at least one value" } else { "one value" };
        return Err(Error::invalid(format!(
            "{}: the option takes {how}, and the list has {}; to keep the default, leave the setting out",
            place(),
            values.len()
        )));
    }
    let lone = arg.clone().required(false).global(false).default_values(lasting(values)).env(None::<&str>);
    let probe = Command::new("caju").no_binary_name(true).disable_help_flag(true).arg(lone);
    probe.try_get_matches_from(Vec::<OsString>::new()).map(drop).map_err(|e| {
        let text = e.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string();
        Error::invalid(format!("{}: {first}", place()))
    })
}
