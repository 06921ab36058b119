"""What slow rows cost: `python3 benches/slow_rows.py`, with the package caju installed. Prints a table in Markdown.

Functions sleep, so the figures do not depend on the number of cores: there are four CPU threads.
"""

import pathlib
import tempfile
import time

import caju as cj

THREADS = 4


def measure(dataset):
    """Seconds to the first row, to the half of the rows, to the last but one, and to the end."""
    began, at = time.monotonic(), []
    for _ in dataset:
        at.append(time.monotonic() - began)
    return at[0], at[len(at) // 2], at[-2], time.monotonic() - began


def slow_first(row):
    time.sleep(3.0 if row["id"] == 0 else 0.01)
    return {"id": row["id"]}


def slow_middle(row):
    time.sleep(2.0 if row["id"] == 500 else 0.0001)
    return {"id": row["id"]}


def all_slow(row):
    time.sleep(0.02)
    return {"id": row["id"]}


def one_in_ten(row):
    time.sleep(0.1 if row["id"] % 10 == 0 else 0.0)
    return {"id": row["id"]}


def main():
    schema = {"id": "int64"}
    with tempfile.TemporaryDirectory() as folder, cj.LocalCluster(cpu_threads=THREADS) as cluster:
        for i in range(200):
            pathlib.Path(folder, f"{i:03}.csv").write_text(f"id\n{i}\n")
        files = cj.read_csv(f"{folder}/*.csv")
        cases = [
            ("a first row of 3 s, 199 of 10 ms, in one split", cj.range(200).map(slow_first, schema=schema), 3.0),
            ("row 500 of 1,000 takes 2 s, others 0.1 ms, in one split", cj.range(1000).map(slow_middle, schema=schema), 2.0),
            ("200 rows of 20 ms, in one split", cj.range(200).map(all_slow, schema=schema), 200 * 0.02 / THREADS),
            ("200 files of one row, one in ten takes 100 ms", files.map(one_in_ten, schema=schema), 20 * 0.1 / THREADS),
        ]
        # Processes start once.
        warm = list(cj.range(4000).map(lambda row: {"id": row["id"]}, schema=schema).distribute(cluster))
        assert len(warm) == 4000
        print("| rows | possible | first row | half of the rows | all but one | all |\n|---|---|---|---|---|---|")
        for what, dataset, possible in cases:
            times = " | ".join(f"{t:.2f} s" for t in measure(dataset.distribute(cluster)))
            print(f"| {what} | {possible:.2f} s | {times} |", flush=True)


if __name__ == "__main__":
    main()
