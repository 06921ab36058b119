//! Wrong arguments, printed like every other error: one `error:` line, and one `hint:` line.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};

use super::Cli;
use crate::output::one_line;

/// What clap writes between its message and its advice.
const ADVICE: [&str; 3] = ["\n\n  tip: ", "\n\nUsage: ", "\n\nFor more information"];
const TIP: &str = "  tip: ";

/// A wrong argument in words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// What is wrong.
    pub(crate) message: String,
    /// What may have been meant, and where the help is.
    pub(crate) hint: String,
}

/// The words for an error of clap; none for an answer in several lines: help and the version.
pub(crate) fn mistake(error: &clap::Error, args: &[OsString]) -> Option<Mistake> {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion) {
        return None;
    }
    let text = error.render().to_string();
    let end = ADVICE.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
    let (message, advice) = text.split_at(end);
    let tips = advice.lines().filter_map(|line| line.strip_prefix(TIP)).map(str::to_owned);
    let help = format!("see `{} --help`", command_of(args));
    Some(Mistake {
        message: one_line(message.strip_prefix("error: ").unwrap_or(message)),
        hint: tips.chain([help]).collect::<Vec<_>>().join("; "),
    })
}

/// The command that the arguments name, with its subcommands, as in `caju cache ls`.
fn command_of(args: &[OsString]) -> String {
    let mut command: Command = Cli::command();
    let mut words = vec![command.get_name().to_owned()];
    for arg in args.iter().skip(1).take_while(|arg| *arg != "--") {
        if let Some(named) = command.find_subcommand(arg).cloned() {
            words.push(named.get_name().to_owned());
            command = named;
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn mistake_in(line: &str) -> Option<Mistake> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        mistake(&Cli::try_parse_from(&args).unwrap_err(), &args)
    }

    #[test]
    fn a_wrong_argument_is_a_line_and_a_hint() {
        for (line, message, hint) in [
            (
                "caju run x.yaml --epochs abc",
                "invalid value 'abc' for '--epochs <N>': invalid digit found in string",
                "see `caju run --help`",
            ),
            (
                "caju run x.yaml --polici x",
                "unexpected argument '--polici' found",
                "a similar argument exists: '--policy'; see `caju run --help`",
            ),
            (
                "caju statu",
                "unrecognized subcommand 'statu'",
                "a similar subcommand exists: 'status'; see `caju --help`",
            ),
            (
                "caju dispatcher --journal redbb",
                "invalid value 'redbb' for '--journal <DATABASE>' [possible values: sled, redb]",
                "a similar value exists: 'redb'; see `caju dispatcher --help`",
            ),
            (
                "caju cache ls",
                "the following required arguments were not provided: --cache <URL>",
                "see `caju cache ls --help`",
            ),
        ] {
            let expected = Mistake { message: message.to_owned(), hint: hint.to_owned() };
            assert_eq!(mistake_in(line), Some(expected), "{line}");
        }
    }

    #[test]
    fn line_breaks_of_an_argument_stay_out_of_the_line() {
        let mistake = mistake_in("caju run x.yaml --epochs a\n\nb").unwrap();
        assert!(mistake.message.starts_with("invalid value 'a b' for '--epochs <N>'"), "{mistake:?}");
    }

    #[test]
    fn help_and_the_version_stay_as_they_are() {
        for line in ["caju", "caju --help", "caju run -h", "caju cache", "caju --version"] {
            assert_eq!(mistake_in(line), None, "{line}");
        }
    }
}
