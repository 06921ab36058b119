#!/usr/bin/env python3
"""Cachew's Figure 7 on this machine: seconds per steady epoch by injected sleep and policy.

usage: experiments/figure7/run.py [--caju BIN] [--rounds 3] [--store-bandwidth 32MB | --near] [--out DIR]

The paper injects 200 to 500 ms a batch where a batch takes 321 ms without any. Here the injections keep those
ratios to the batch time that is measured first. The order of policies alternates from round to round. As in the paper
the caches are in a store that has to be asked for its bytes: in memory, with so much bandwidth for each request
(`--near`: in files, which are mapped). A steady epoch is the median of those from the fourth on (the third is the
first in which everything is read). After each point it writes a table (README.md of results/) and, where matplotlib is
installed, figure7.svg. The points themselves are in result.json of --out, which is not in git: points that are there
and were not asked for stay in the table.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Injected milliseconds of the paper, and its batch time without injection: 178.4 s for 556 batches.
PAPER = [200, 250, 300, 350, 400, 450, 500]
PAPER_BATCH_MS = 320.9
# The first epoch that counts.
STEADY = 3
# The factor over the best time of the first round above which nothing is run again.
NEAR = 1.25
POLICIES = ["compute", "source", "full", "cachew", "auto"]
# The full cache once more, in the encoding that reads fastest from this store: `auto` may choose it, so it counts.
COMPRESSED = "full, zstd"
CURVES = ["compute", "source", "full", COMPRESSED, "cachew", "auto"]
CURVE_OF = {"compute": "compute", "source arrow/none": "source", "full arrow/none": "full", "full arrow/zstd": COMPRESSED}


def run(*command):
    ended = subprocess.run([*map(str, command)], stderr=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {ended.stderr.strip()}")


def linked(args):
    """The photos `--copies` times, as links: longer epochs without filling the disk."""
    if not list(args.data.glob("*.tfrecord")):
        run(args.caju, "gen", "images", "--out", args.data, "--count", args.count, "--format", "tfrecord", "--shards", 8, "--quiet")
    more = args.data.with_name(f"{args.data.name}-x{args.copies}")
    if not more.exists():
        more.mkdir()
        for i in range(args.copies):
            for file in sorted(args.data.glob("*.tfrecord")):
                (more / f"{i:02}-{file.name}").hardlink_to(file)
    return more


def pipeline(data, batch, sleep_s):
    steps = [
        {"parse_example": {"features": {"image/encoded": "bytes"}}},
        {"map": {"image": '"image/encoded"'}},
        {"autocache": "source"},
        {"inflate": {"column": "image", "factor": 2.5}},
        # The sleep of a batch, row by row, so that the last hint stands above the batches.
        {"sleep": {"per_row": f"{sleep_s / batch * 1e9:.0f}ns"}},
        {"autocache": "full"},
        {"batch": {"size": batch, "drop_remainder": True}},
    ]
    if sleep_s == 0:
        del steps[4]
    return {"name": "figure7", "source": {"tfrecord": {"path": f"{data}/*.tfrecord"}}, "steps": steps}


def measure(args, data, name, sleep_s, policy, *more):
    """A trial of a policy: its epochs' seconds, and what it chose."""
    file, out = args.out / f"{name}.json", args.out / f"{name}.result.json"
    file.write_text(json.dumps(pipeline(data, args.batch, sleep_s)))
    where = ["--scratch", args.out] if args.near else ["--store-bandwidth", args.store_bandwidth]
    run(args.caju, "bench", "policies", file, "--policies", policy, "--epochs", args.epochs, "--horizon", 90,
        "--repeats", 1, "--cold-only", *where, *more, "--out", out)
    return json.loads(out.read_text())["trials"][0]


def one_round(args, data, ms, sleep_s, policies, backwards):
    """A trial of each policy, in a process of its own: memory that another one had is neither at hand nor in the way. Those
    that are forced to store do so as `arrow/none`, but for the compressed one."""
    trials = {}
    for policy in reversed(policies) if backwards else policies:
        name = f"{ms}ms-{policy.replace(', ', '-')}"
        forced = ("full", "--encoding", "arrow/zstd") if policy == COMPRESSED else (policy,)
        trials[policy] = measure(args, data, name, sleep_s, *forced)
    return trials


def steady(trial):
    return statistics.median(e["wall_s"] for e in trial["epochs"][STEADY:])


def spread(times):
    """Between the fastest and the slowest round, of the median."""
    return (max(times) - min(times)) / statistics.median(times)


def decides(policy):
    return policy in ("auto", "cachew")


def near(trials):
    """`auto`, and what is not far behind the best: the rest needs no more rounds."""
    best = min(steady(t) for p, t in trials.items() if not decides(p))
    return [p for p, t in trials.items() if p == "auto" or steady(t) <= NEAR * best]


def chosen(trial):
    """What a job read in the end."""
    c = trial["choice"] or {"kind": "nothing"}
    return f"{c['hint']} {c['format']}/{c['compression']}" if "hint" in c else c["kind"]


def of_choices(took, lost, times, best):
    """What was lost by what the jobs chose, each taken for the curve of those that were told to: without the noise of the
    jobs' own trials. Of a choice that has no curve there is nothing but its trial."""
    curves = [CURVE_OF.get(choice) for choice in took]
    return statistics.mean(times[c] / times[best] - 1 if c else own for c, own in zip(curves, lost))


def point(ms, sleep_s, rounds):
    of = {p: [r[p] for r in rounds if p in r] for p in CURVES}
    times = {p: statistics.median(map(steady, trials)) for p, trials in of.items()}
    # What was far behind in the first round ran when the machine may have been faster.
    final = [p for p in CURVES if not decides(p) and len(of[p]) == len(rounds)]
    best = min(final, key=times.get)
    # A machine drifts: only trials of one round are held against each other.
    lost = {p: [steady(r[p]) / steady(r[best]) - 1 for r in rounds if p in r] for p in ("auto", "cachew")}
    took = {p: [chosen(t) for t in of[p]] for p in lost}
    return {
        "paper_ms": ms,
        "injected_s_per_batch": sleep_s,
        "rounds": len(rounds),
        "epoch_s": times,
        "best": best,
        "took": took,
        "regret_of_choices": {p: of_choices(took[p], lost[p], times, best) for p in lost},
        "regret": {p: statistics.median(values) for p, values in lost.items()},
        "regret_between": [min(lost["auto"]), max(lost["auto"])],
        "noise": spread([steady(t) for t in of[best]]),
    }


def table(result):
    store = result["store_bandwidth"]
    lines = ["# Figure 7 on two cores\n",
             ("Caches in files. " if store is None else f"Caches in a store that gives each request {store} a second. ")
             + f"Seconds of a steady epoch, medians of the rounds; {result['batch_s_without_injection'] * 1e3:.1f} ms a batch without injection. What was far behind "
             "in the first round was not run again. Regret is against the best policy that decides nothing, in the same round: the "
             "median of the rounds, and in brackets the least and the most. Noise: the spread of the best policy between rounds. Policies that are told where to store do "
             f"so as `arrow/none`, `{COMPRESSED}` as `arrow/zstd`. By choice: the same of the curves that `auto`'s jobs chose, the mean of the "
             "jobs, so without the noise of their own trials; a choice that has no curve counts as its trial.\n",
             "| paper's injection | here | rounds | " + " | ".join(CURVES) + " | best | `auto` chose | regret | by choice | `cachew` chose | regret | noise |",
             "|" + "---|" * (len(CURVES) + 10)]
    for p in result["points"]:
        t, r, (low, high) = p["epoch_s"], p["regret"], p["regret_between"]
        c = {policy: ", ".join(f"{n} ({took.count(n)})" for n in sorted(set(took))) for policy, took in p["took"].items()}
        lines.append(f"| {p['paper_ms']} ms | {p['injected_s_per_batch'] * 1e3:.1f} ms | {p['rounds']} | " + " | ".join(f"{t[x]:.2f}" for x in CURVES)
                     + f" | {p['best']} | {c['auto']} | {r['auto']:+.1%} ({100 * low:+.1f} .. {100 * high:+.1f}) | {p['regret_of_choices']['auto']:+.1%} | {c['cachew']} | {r['cachew']:+.1%} | {p['noise']:.1%} |")
    for policy in ("auto", "cachew"):
        all_of = [p["regret"][policy] for p in result["points"]]
        aside = statistics.mean(max(r, 0) for r in all_of)
        choices = [p["regret_of_choices"][policy] for p in result["points"]]
        lines.append(f"\n`{policy}`: mean regret {aside:.1%} (gains count as 0; with them {statistics.mean(all_of):+.1%}), worst {max(all_of):+.1%}. "
                     f"By choice: mean {statistics.mean(choices):.1%}, worst {max(choices):+.1%}.")
    return "\n".join(lines) + "\n"


def draw(result, path):
    try:
        import matplotlib
    except ImportError:
        return print("no picture: `pip install matplotlib` for one", file=sys.stderr)
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8))
    x = [p["injected_s_per_batch"] * 1e3 for p in result["points"]]
    styles = {"cachew": "--", "auto": ":"}
    for policy in CURVES:
        y = [p["epoch_s"][policy] for p in result["points"]]
        axes.plot(x, y, styles.get(policy, "-"), marker="o", label=policy, linewidth=3 if policy == "auto" else 1.6)
    axes.set_xlabel("sleep injected per batch, ms")
    axes.set_ylabel("seconds per steady epoch (less is better)")
    axes.set_title("Steady epochs by what is stored, with more and more sleep; auto should lie on the lowest curve")
    axes.title.set_fontsize(10)
    axes.set_ylim(bottom=0)
    axes.legend(loc="center right")
    axes.grid(alpha=0.3)
    figure.savefig(path, bbox_inches="tight")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caju", type=pathlib.Path, default=ROOT / "target/release/caju")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/figure7")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "data/figure7-runs")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--count", type=int, default=4000, help="photos to generate if there are none")
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store-bandwidth", default="32MB", help="bytes per second of each request to the caches' store")
    parser.add_argument("--points", type=lambda text: [int(ms) for ms in text.split(",")], default=PAPER,
                        help="injections of the paper in milliseconds, as 400,450; all seven by default")
    parser.add_argument("--near", action="store_true", help="caches in files instead, which are mapped")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.results.mkdir(parents=True, exist_ok=True)
    data = linked(args)

    free = measure(args, data, "free", 0, "compute")
    batch_s = steady(free) / free["epochs"][0]["batches"]
    result = {"batch_s_without_injection": batch_s, "batch": args.batch, "epochs": args.epochs, "copies": args.copies,
              "store_bandwidth": None if args.near else args.store_bandwidth, "points": []}
    file = args.out / "result.json"
    if file.exists():
        known = json.loads(file.read_text())
        # Points that were measured in another way are no curve with these.
        if all(known.get(key) == result[key] for key in ("batch", "epochs", "copies", "store_bandwidth")):
            result["points"] = known["points"]
    for ms in args.points:
        sleep_s = ms / PAPER_BATCH_MS * batch_s
        rounds = [one_round(args, data, ms, sleep_s, [*POLICIES, COMPRESSED], False)]
        finalists = near(rounds[0])
        rounds += [one_round(args, data, ms, sleep_s, finalists, r % 2 == 1) for r in range(1, args.rounds)]
        found = point(ms, sleep_s, rounds)
        others = (p for p in result["points"] if p["paper_ms"] != ms)
        result["points"] = sorted([*others, found], key=lambda p: p["paper_ms"])
        print(json.dumps(found), flush=True)
        file.write_text(json.dumps(result, indent=1) + "\n")
        (args.results / "README.md").write_text(table(result))
        draw(result, args.results / "figure7.svg")
    print(table(result))


if __name__ == "__main__":
    main()
