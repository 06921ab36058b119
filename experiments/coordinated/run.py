#!/usr/bin/env python3
"""Coordinated reads: seconds per epoch of four ranks whose steps take as long as the longest batch of the round.

usage: experiments/coordinated/run.py [--ranks 4] [--rows 12000] [--batch 16] [--item-us 10] [--rounds 2]
                                      [--texts GLOB] [--results DIR]

Needs the Python package `caju` (`pip install crates/python`). Two workers in this process compute, and each rank is a
thread that reads with `num_consumers`. In each step all ranks wait for each other, and then for the items of the most
expensive batch of the round, at --item-us microseconds an item. A padded batch has rows x longest row items.

Lengths are log-normal (median 100; sigma 1, the tail that texts have, and sigma 0.5), and the words of the sentences of
the files of --texts. After each kind of lengths it writes the table in results/README.md, and results/coordinated.svg.
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
PADDED = ["padded, uncoordinated", "padded by class, uncoordinated", "padded by class, `bucket`"]
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
        PADDED[1]: (rows.bucket_by_length("length", bounds, batch), None),
        PADDED[2]: (rows.bucket_by_length("length", bounds, batch), "bucket"),
        PACKED[0]: (rows.batch(batch), None),
        PACKED[1]: (rows.batch(batch), "tokens"),
    }


def items(name, batch):
    lengths = batch["length"]
    if name in PADDED:
        return len(lengths) * int(batch["tokens"].shape[1])
    return int(lengths.sum())


def epoch(name, dataset, balance, ranks, item_s):
    """Seconds of an epoch from its first step on, the items of its slowest batches, the items and rows of all, and its steps."""
    import caju

    costs, sums, rows = [[] for _ in range(ranks)], [0] * ranks, [0] * ranks
    barrier = threading.Barrier(ranks)
    began = [0.0] * ranks

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
            began[rank] = began[rank] or time.perf_counter()
            time.sleep(item_s * max(costs[other][step] for other in range(ranks)))
            barrier.wait()

    with caju.LocalCluster(workers=2) as cluster:
        threads = [threading.Thread(target=run, args=(rank, cluster)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - min(began)
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
    """Bars of the seconds per epoch, with a line at what perfect packing would take."""
    width, height, left, top, names = 290, 220, 46, 34, ["padded", "by class", "bucket", "unpadded", "tokens"]
    parts = []
    for panel, (kind, found) in enumerate(results.items()):
        x0, most = left + panel * (width + 30), max(r["s"] for r in found.values())
        y = lambda s: top + height * (1 - s / most)
        parts.append(f'<text x="{x0 + width / 2}" y="20" text-anchor="middle">{kind}</text>')
        parts.append(f'<path d="M{x0} {top}V{top + height}H{x0 + width}" fill="none" stroke="#888"/>')
        parts.append(f'<text x="{x0 - 4}" y="{top + 10}" text-anchor="end">{most:.1f} s</text>')
        for at, name in enumerate(PADDED + PACKED):
            x, r = x0 + 12 + at * 57, found[name]
            color = "#6a6" if names[at] in ("bucket", "tokens") else "#c66"
            parts.append(f'<rect x="{x}" y="{y(r["s"]):.1f}" width="42" height="{height * r["s"] / most:.1f}" fill="{color}"/>')
            parts.append(f'<path d="M{x - 4} {y(r["bound_s"]):.1f}h50" stroke="#000" stroke-width="2"/>')
            parts.append(f'<text x="{x + 21}" y="{y(r["s"]) - 4:.1f}" text-anchor="middle">{r["s"]:.2f}</text>')
            parts.append(f'<text x="{x + 21}" y="{top + height + 15}" text-anchor="middle">{names[at]}</text>')
    total = left + len(results) * (width + 30)
    parts.append(f'<text x="{left}" y="{top + height + 34}">seconds per epoch; black lines: perfect packing</text>')
    size = f'width="{total}" height="{top + height + 44}"'
    body = "\n".join(parts)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n{body}\n</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--item-us", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
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
