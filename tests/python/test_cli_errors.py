"""Errors of the command line: one line that says what is wrong and where, and a hint."""

import os
import threading

import pytest


def errors(caju, *args):
    """The lines that a command writes to standard error, when its input is wrong."""
    done = caju(*args, code=2)
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.parametrize("args, error, hint", [
    ("run x.yaml --epochs abc", "error: invalid value 'abc' for '--epochs <N>': invalid digit found in string",
     "  hint: see `caju run --help`"),
    ("run x.yaml --polici x", "error: unexpected argument '--polici' found",
     "  hint: a similar argument exists: '--policy'; see `caju run --help`"),
    ("statu", "error: unrecognized subcommand 'statu'", "  hint: a similar subcommand exists: 'status'; see `caju --help`"),
    ("dispatcher --journal redbb",
     "error: invalid value 'redbb' for '--journal <DATABASE>' [possible values: sled, redb]",
     "  hint: a similar value exists: 'redb'; see `caju dispatcher --help`"),
    ("cache inspect", "error: the following required arguments were not provided: ",
     "  hint: see `caju cache inspect --help`"),
])  # fmt: skip
def test_a_wrong_argument_is_one_line_and_a_hint(caju, args, error, hint):
    first, second = errors(caju, *args.split())
    assert first.startswith(error) and second == hint


@pytest.mark.parametrize("args, words", [("--help", "Usage: caju"), ("run --help", "Usage: caju run"), ("--version", "caju ")])
def test_help_and_the_version_are_no_errors(caju, args, words):
    done = caju(*args.split())
    assert words in done.stdout and done.stderr == ""


@pytest.mark.parametrize("command", ["check", "run", "profile", "save --to {to}"])
@pytest.mark.parametrize("text, place", [
    ("source: { range: 10 }\nsteps: [ map: { x: nosuch(id) } ]", "steps[0].map.x: unknown function `nosuch`"),
    ("source: { csv: nosuch-*.csv }", "no file matches"),
    ("source: { range: 10 }\nsteps: [ mapp: 1 ]", "unknown stage `mapp`"),
])
def test_an_error_of_a_definition_names_its_file(caju, tmp_path, command, text, place):
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    name, *flags = command.format(to=tmp_path / "saved").split()
    (line,) = errors(caju, name, file, *flags)
    assert line.startswith(f"error: {file}: {place}"), line


@pytest.mark.parametrize("command", ["check {file}", "run {file}", "explain {file}", "plan {file}", "scale {file}",
                                     "--config {file} check {ok}", "run {ok} --reorder-profile {file}",
                                     "read {ok} --state {file} --dispatcher 127.0.0.1:1",
                                     "worker drain 1 --dispatcher 127.0.0.1:1 --operator-secret-file {file}"])
def test_a_file_without_an_end_or_a_folder_is_refused_at_once(caju, tmp_path, command):
    ok = tmp_path / "pipeline.yaml"
    ok.write_text("source: { range: 10 }")
    for file, words in [("/dev/zero", "more than "), (tmp_path, "folder")]:
        (line,) = errors(caju, *command.format(file=file, ok=ok).split())
        assert line.startswith("error: ") and str(file) in line and words in line, line


@pytest.mark.parametrize("command", ["check {file}", "--config {file} check nothing.yaml"])
def test_a_pipe_is_read_to_its_end(caju, tmp_path, command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "source: { range: 10 }\nsteps: [ mapp: 1 ]" if command.startswith("check") else "nosuch = 1"
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    (line,) = errors(caju, *command.format(file=pipe).split())
    writer.join()
    assert line.startswith(f"error: {pipe}: " if command.startswith("check") else "error: ") and "unknown" in line, line


def test_a_pipe_without_a_writer_is_given_up(caju, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = caju("check", pipe, code=3)
    assert done.stderr == f"error: {pipe}: nobody has opened this pipe for writing within 10.00 s\n"
