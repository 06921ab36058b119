#!/usr/bin/env python3
"""Runs `caju bench policies` on every pipeline of this folder, and writes a table and pictures to results/.

    cargo build --release && experiments/policies/run.py

Sample data is generated once, under data/policies (about 600 MB). In a pipeline, the line `# bench: ARGS` gives its own
arguments to the command. The line `# copies: N` says how often each file is linked, so that epochs take long without
filling the disk.

Each pipeline gives data/policies/trials/NAME.json (every trial, about 100 KB, not in git) and results/NAME.svg. The
table in results/README.md is written when every pipeline has its trials.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

# Policies that are further behind the best one, as a fraction of its time, get no refine rounds: the rule of
# `caju bench policies --refine-rounds`.
REFINE_LIMIT = 0.25
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def caju(*command):
    command = [str(args.caju), *map(str, command)]
    print("+", " ".join(command), file=sys.stderr, flush=True)
    subprocess.run(command, check=True)


def generate():
    made = {}
    for name, kind, count, form in [("PHOTOS", "images", args.photos, "tfrecord"), ("TABLE", "table", args.rows, "parquet"),
                                    ("TEXT", "text", args.texts, "json")]:
        folder = args.data / f"{kind}-{count}"
        if not folder.exists():
            caju("gen", kind, "--out", folder, "--count", count, "--format", form, "--shards", 8)
        made[name] = folder
    return made


def copies(folder, times):
    """A folder with `times` links to each file: long epochs without filling the disk."""
    if times == 1:
        return folder
    more = folder.with_name(f"{folder.name}-x{times}")
    if not more.exists():
        more.mkdir()
        for i in range(times):
            for file in sorted(f for f in folder.iterdir() if f.is_file()):
                (more / f"{i:03}-{file.name}").hardlink_to(file)
    return more


def bench(file, data):
    text = file.read_text()
    times = re.search(r"^# copies: (\d+)$", text, re.M)
    used = {key: folder for key, folder in data.items() if f"${key}/" in text}
    data = {key: copies(folder, int(times.group(1)) if times else 1) for key, folder in used.items()}
    for key, folder in data.items():
        text = text.replace(f"${key}", str(folder.resolve()))
    ready = args.data / file.name
    ready.write_text(text)
    own = re.search(r"^# bench: (.*)$", text, re.M)
    out = args.trials / f"{file.stem}.json"
    own = own.group(1).split() if own else []
    near = [] if "--store-bandwidth" in own else ["--scratch", args.data]
    caju("bench", "policies", ready, "--repeats", args.repeats, "--refine-rounds", args.refine_rounds, *near, "--out", out,
         "--plot", args.results / f"{file.stem}.svg", *(["--cold-only"] if args.cold_only else []), *own)
    # The paths of this machine do not belong into results.
    found = out.read_text()
    for key, folder in data.items():
        found = found.replace(str(folder.resolve()), f"${key}")
    out.write_text(found)
    return out


def table(files):
    lines = ["# Results\n", "Time of a job with a cold cache under each policy. Four to eight epochs are measured (the third is the first in which "
             "`auto` reads everything, and checks it); the horizon is 90 epochs, those that were not measured taken to be like the last ones. Regret is "
             "the time lost over the horizon against the best measured policy that decides nothing, in the same round: the median of the "
             "rounds, and in brackets where it lies in nine of ten cases (of fewer than five rounds, the least and the most). Policies that "
             "are far behind after the first rounds are not run again. `measured` is the same over the "
             "measured epochs alone, `steady` of the last ones. Noise: the spread between rounds of one policy (median). Where "
             "`auto` ran the same plan as the best one in every round, its regret is what finding out costs, and noise.\n",
             "| pipeline | rounds | best | next best | `auto` chose | regret of `auto` | measured | steady | regret of `cachew` | noise | same plan | decided after | cached from |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    regrets, apart = {"auto": [], "cachew": []}, []
    for file in files:
        result = json.loads(file.read_text())
        summary = result["summary"]
        of = {line["policy"]: line for line in summary["lines"]}
        if "rounds" not in of["auto"]:
            lines.append(f"| {file.stem} | measured before regret was reckoned round by round: run it again |" + " |" * 11)
            continue
        for policy, all_of in regrets.items():
            all_of.append(of[policy]["regret"])
        auto = of["auto"]
        if told_apart(summary):
            apart.append(max(auto["regret"], 0))
        chose = ", ".join(f"{c} ({n})" if len(auto["choices"]) > 1 else c for c, n in auto["choices"]) or "nothing yet"
        same = "yes" if same_plan(summary["oracle"], auto) else "no"
        since = "-" if auto["cached_from"] is None else f"epoch {auto['cached_from']}"
        lines.append(f"| {file.stem} | {auto['rounds']} | {summary['oracle']} | {next_best(summary)} | {chose} | {auto['regret']:+.1%}{between(auto)} | {auto['measured_regret']:+.1%} | {auto['steady_regret']:+.1%} "
                     f"| {of['cachew']['regret']:+.1%} | {noise(summary)} | {same} | {decided(result)} | {since} |")
    for policy, all_of in regrets.items():
        gains_aside = statistics.mean(max(regret, 0) for regret in all_of)
        lines.append(f"\n`{policy}`: mean regret {gains_aside:.1%} (gains count as 0; with them {statistics.mean(all_of):+.1%}), worst {max(all_of):+.1%}.")
    lines.append(f"\nOn the {len(apart)} pipelines where the best option can be told from the next one (whose interval does not hold 0), "
                 f"`auto`: mean {statistics.mean(apart or [0]):.1%}, worst {max(apart, default=0):+.1%}.")
    return "\n".join(lines) + "\n"


def second(summary):
    others = [line for line in summary["lines"] if line["policy"] not in ("auto", "cachew", summary["oracle"])]
    return min(others, key=lambda line: line["regret"], default=None)


def next_best(summary):
    line = second(summary)
    return f"{line['policy']} {line['regret']:+.1%}{between(line)}" if line else "-"


def told_apart(summary):
    """Whether the best option can be told from the next one. One round is enough for a policy far behind, and says
    nothing about a nearer one."""
    line = second(summary)
    if line is None or not line["regret_between"]:
        return line is not None and line["regret"] > REFINE_LIMIT
    return line["regret_between"][0] > 0


def between(line):
    found = line["regret_between"]
    return f" ({100 * found[0]:+.1f} .. {100 * found[1]:+.1f})" if found else ""


def noise(summary):
    """One round has no noise: null, or 0 in older results."""
    return f"{summary['noise']:.1%}" if summary["noise"] else "one round"


def same_plan(oracle, auto):
    """Whether `auto` chose the best policy's plan. Policies that are told where to store do so as arrow/none."""
    own = "compute" if oracle == "compute" else f"{oracle.removeprefix('hint:')} as arrow/none"
    return [choice for choice, _ in auto["choices"]] == [own]


def decided(result):
    """The fraction of the first epoch's splits that had begun when `auto` decided: the median of the cold jobs."""
    fractions = []
    for trial in result["trials"]:
        splits = trial["epochs"][0]["splits"]
        if trial["policy"] == "auto" and not trial["warm"] and splits["put"]:
            fractions.append((splits["compute"] + splits.get("backfilled", splits.get("kept", 0))) / (splits["compute"] + splits["put"]))
    return f"{statistics.median(fractions):.0%}" if fractions else "-"


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="pipelines; all by default")
    p.add_argument("--caju", type=pathlib.Path, default=ROOT / "target" / "release" / "caju")
    p.add_argument("--data", type=pathlib.Path, default=ROOT / "data" / "policies")
    p.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    p.add_argument("--repeats", type=int, default=1)
    p.add_argument("--trials", type=pathlib.Path, help="folder of the trials; DATA/trials by default")
    p.add_argument("--refine-rounds", type=int, default=5, help="further rounds of auto and the best policies alone")
    p.add_argument("--cold-only", action="store_true", help="leave the warm jobs out")
    p.add_argument("--photos", type=int, default=3000)
    p.add_argument("--rows", type=int, default=1_000_000)
    p.add_argument("--texts", type=int, default=150_000)
    args = p.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    args.results.mkdir(parents=True, exist_ok=True)
    args.trials = args.trials or args.data / "trials"
    args.trials.mkdir(parents=True, exist_ok=True)
    data = generate()
    for file in sorted(HERE.glob("*.yaml")):
        if not args.names or file.stem in args.names:
            bench(file, data)
    trials = [args.trials / f"{file.stem}.json" for file in sorted(HERE.glob("*.yaml"))]
    missing = [file.stem for file in trials if not file.exists()]
    if missing:
        print(f"the table is not written: no trials of {', '.join(missing)}")
    else:
        (args.results / "README.md").write_text(table(trials))
        print(f"wrote {args.results / 'README.md'}")
