#!/usr/bin/env python3
"""Coordinated reads: seconds per epoch of four ranks whose steps take as long as the longest batch of the round.

usage: experiments/coordinated/run.py [--ranks 4] [--rows 16000] [--batch 16] [--item-us 4] [--rounds 3]
                                      [--texts GLOB] [--results DIR]

Needs the Python package `caju` (`pip install crates/python`). Two workers in this process compute, and each rank is a
thread that reads with `num_consumers`. In each step all ranks wait for each other, and then for the items of the most
expensive batch of the round, at --item-us microseconds an item. A padded batch has rows x longest row items.

Lengths are log-normal (median 100; sigma 1, the tail that texts have, and sigma 0.5), and the words of the sentences of
the files of --texts. After each kind of lengths it writes the table in results/README.md and, where matplotlib is
installed, results/coordinated.svg.
"""

import argparse
import glob
import math
import pathlib
import random
import re
import statistics
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
SEED = 11
# Classes of `bucket_by_length`, at quantiles of the lengths.
CLASSES = 12
PADDED = ["padded, uncoordinated", "padded, `bucket`"]
PACKED = ["unpadded, uncoordinated", "unpadded, `tokens`"]


def log_normal(count, sigma):
    draws = random.Random(SEED)
    return [max(1, min(4000, round(100 * math.exp(draws.gauss(0, sigma))))) for _ in range(count)]


def sentences(pattern, count):
    """The words of each sentence of some texts, drawn again until there are enough."""
    lengths = []
    for name in sorted(glob.glob(pattern)):
        text = pathlib.Path(name).read_text(errors="replace")
        lengths += [len(s.split()) for s in re.split(r"(?<=[.;:?!])\s+|\n\s*\n", text) if s.split()]
    draws = random.Random(SEED)
    return [draws.choice(lengths) for _ in range(count)] if lengths else []


def boundaries(lengths):
    ordered = sorted(lengths)
    cuts = {ordered[len(ordered) * k // CLASSES] for k in range(1, CLASSES)}
    return sorted(cuts)


def datasets(lengths, batch):
    """Each variant, and its `balance`."""
    import caju
    import numpy as np

    rows = caju.from_numpy({"length": np.asarray(lengths, dtype=np.int64)}).with_columns(
        tokens="array_repeat(length, length)"
    ).shuffle(2000, seed=SEED)
    bounds = boundaries(lengths)
    return {
        PADDED[0]: (rows.padded_batch(batch), None),
        PADDED[1]: (rows.bucket_by_length("length", bounds, batch), "bucket"),
        PACKED[0]: (rows.batch(batch), None),
        PACKED[1]: (rows.batch(batch), "tokens"),
    }


def items(name, batch):
    lengths = batch["length"]
    if name in PADDED:
        return len(lengths) * int(batch["tokens"].shape[1])
    return int(lengths.sum())


def epoch(name, dataset, balance, ranks, item_s):
    """Seconds of an epoch, the items of its slowest batches, the items and rows of all, and its steps."""
    import caju

    costs, sums, rows = [[] for _ in range(ranks)], [0] * ranks, [0] * ranks
    barrier = threading.Barrier(ranks)

    def run(rank, cluster):
        mine = dataset.distribute(
            cluster, job_name="train", num_consumers=ranks, consumer_index=rank, uneven="drop", balance=balance
        )
        for step, batch in enumerate(mine):
            costs[rank].append(items(name, batch))
            sums[rank] += int(batch["length"].sum())
            rows[rank] += len(batch["length"])
            # The collective step: all ranks have a batch, and wait for the most expensive one.
            barrier.wait()
            time.sleep(item_s * max(costs[other][step] for other in range(ranks)))
            barrier.wait()

    with caju.LocalCluster(workers=2) as cluster:
        threads = [threading.Thread(target=run, args=(rank, cluster)) for rank in range(ranks)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - start
    slowest = sum(max(step) for step in zip(*costs, strict=True))
    return took, slowest, sum(sums), sum(rows), len(costs[0])


def measure(lengths, args):
    """Medians of each variant, in alternating rounds."""
    variants = datasets(lengths, args.batch)
    found = {name: [] for name in variants}
    for turn in range(args.rounds):
        for name in list(variants)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(epoch(name, *variants[name], args.ranks, args.item_us / 1e6))
            print(f"  {name}: {found[name][-1][0]:.2f} s, {found[name][-1][4]} steps", flush=True)
    out = {}
    for name, runs in found.items():
        took, slowest, total, rows, steps = (statistics.median(run[k] for run in runs) for k in range(5))
        # Perfect packing: no padding, and all ranks have equally many items in every step.
        bound = total / args.ranks
        out[name] = {"s": took, "bound_s": bound * args.item_us / 1e6, "over": slowest / bound, "rows": rows, "steps": steps}
    return out


def table(results, args):
    lines = [
        "# Results", "",
        f"{args.ranks} ranks, {args.rows:,} rows, batches of {args.batch}, {args.item_us} us an item, medians of "
        f"{args.rounds} rounds. *Perfect packing*: the items of the rows that were delivered, without padding, divided "
        "by the ranks. *Items*: those of the most expensive batches of all steps, against perfect packing.", "",
    ]  # fmt: skip
    for kind, found in results.items():
        base = {**dict.fromkeys(PADDED, PADDED[0]), **dict.fromkeys(PACKED, PACKED[0])}
        lines += [f"## {kind}", "", "| batches | s per epoch | perfect packing, s | items | faster than uncoordinated | rows |",
                  "|---|---|---|---|---|---|"]  # fmt: skip
        for name, r in found.items():
            gain = (found[base[name]]["s"] / found[base[name]]["rows"]) / (r["s"] / r["rows"])
            lines.append(
                f"| {name} | {r['s']:.2f} | {r['bound_s']:.2f} | {r['over']:.3f}x | {gain:.2f}x | {r['rows']:,.0f} |"
            )
        lines.append("")
    return "\n".join(lines)


def draw(results, path):
    try:
        import matplotlib

        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    names = PADDED + PACKED
    figure, axes = plt.subplots(1, len(results), figsize=(4 * len(results), 3.2), squeeze=False)
    for axis, (kind, found) in zip(axes[0], results.items(), strict=True):
        axis.bar(range(len(names)), [found[n]["s"] for n in names], color=["#c66", "#6a6", "#c66", "#6a6"])
        for at, name in enumerate(names):
            axis.plot([at - 0.4, at + 0.4], [found[name]["bound_s"]] * 2, color="black", linewidth=1)
        axis.set_xticks(range(len(names)), ["padded", "bucket", "unpadded", "tokens"])
        axis.set_title(kind, fontsize=9)
        axis.set_ylabel("s per epoch (line: perfect packing)", fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--item-us", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", default="/usr/share/common-licenses/*", help="real texts; none: left out")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    args = parser.parse_args()
    kinds = {"log-normal, sigma 1": log_normal(args.rows, 1.0), "log-normal, sigma 0.5": log_normal(args.rows, 0.5)}
    if words := sentences(args.texts, args.rows):
        kinds["sentences of licences"] = words
    results = {}
    for kind, lengths in kinds.items():
        print(kind, flush=True)
        results[kind] = measure(lengths, args)
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "README.md").write_text(table(results, args))
        draw(results, args.results / "coordinated.svg")
    print(table(results, args))


if __name__ == "__main__":
    main()
