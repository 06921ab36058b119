"""Texts of different lengths in batches of similar length, and how much padding that saves.

    python examples/text_bucketed.py [--rows 2000]
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import caju

BOUNDARIES = [32, 64, 128, 256, 512]


def tokens(folder):
    """One row per text: its words, at most 1024, and its label."""
    return caju.read_json(f"{folder}/*.jsonl").map(
        tokens="truncate(tokenize(lower(text), '[a-z]+'), 1024)", label="label"
    )


def padding(dataset):
    """The fraction of the batches' positions that hold no word."""
    places = words = 0
    for batch in dataset:
        places += batch["tokens"].size
        words += int((batch["tokens"] != "").sum())
    return 1 - words / places


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="a folder of .jsonl files with `text`; sample data by default")
    parser.add_argument("--rows", type=int, default=2000)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if args.data is None:
            command = ["gen", "text", "--out", folder, "--count", str(args.rows), "--format", "json", "--quiet"]
            subprocess.run([sys.executable, "-m", "caju", *command], check=True)
        texts = tokens(args.data or folder).shuffle(1000)
        plain = padding(texts.padded_batch(32))
        bucketed = padding(texts.bucket_by_length("array_length(tokens)", BOUNDARIES, 32))
        print(f"padding: {plain:.0%} in plain batches, {bucketed:.0%} in batches of similar length")
        return plain, bucketed


if __name__ == "__main__":
    main()
