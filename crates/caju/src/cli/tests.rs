//! Tests of the command line's help.

use clap::{Command, CommandFactory};

use super::Cli;

/// Columns of a narrow terminal.
const WIDTH: usize = 80;

/// Lines of a command's help that end although the next word would still fit, and the commands below it.
fn lines_wrapped_twice(command: &mut Command, path: &str) -> Vec<String> {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().collect();
    let mut found = Vec::new();
    for pair in lines.windows(2) {
        let [line, next] = pair else { continue };
        let is_prose = |text: &str| text.starts_with(|c: char| !c.is_whitespace());
        let first = next.split_whitespace().next().unwrap_or_default();
        if is_prose(line)
            && is_prose(next)
            && !line.ends_with(['.', ':'])
            && line.chars().count() + 1 + first.chars().count() <= WIDTH
        {
            found.push(format!("{path}: {line}"));
        }
    }
    for below in command.get_subcommands_mut() {
        let path = format!("{path} {}", below.get_name());
        found.extend(lines_wrapped_twice(below, &path));
    }
    found
}

#[test]
fn the_help_of_every_command_is_wrapped_once() {
    let mut cli = Cli::command().term_width(WIDTH);
    cli.build();
    assert_eq!(lines_wrapped_twice(&mut cli, "caju"), Vec::<String>::new());
}

/// The name of a launch belongs to a state or to consumers, and to both.
#[test]
fn a_launch_is_named_with_a_state_and_with_consumers() {
    let consumer = ["--num-consumers", "2", "--consumer-index", "0"];
    let is_read = |args: &[&str], attempt: &[&str]| {
        let read = ["caju", "read", "x.yaml", "--dispatcher", "a:1", "--job", "j"];
        Cli::command().try_get_matches_from([&read[..], args, attempt].concat()).is_ok()
    };
    for given in [&["--state", "s"][..], &consumer, &["--rank-from-env=slurm"]] {
        assert!(is_read(given, &[]) && is_read(given, &["--attempt", "a"]), "{given:?}");
    }
    for given in [&consumer[..], &["--rank-from-env=slurm"]] {
        let both = [given, &["--state", "s"]].concat();
        assert!(is_read(&both, &[]) && is_read(&both, &["--attempt", "a"]), "{both:?}");
    }
    assert!(!is_read(&[], &["--attempt", "a"]));
}
