"""Compare methods over clients and seeds: the tables of results/, as Markdown.

    python examples/compare.py fedavg=runs/avg-0,runs/avg-1 perfedrlnas=runs/rl-0,runs/rl-1
    python examples/compare.py sde=runs/a bred=runs/b all=runs/c both=runs/d \
        --effect "diffusion=sde,all/bred,both" --effect "archive=sde,bred/all,both"

Each argument is a name and its runs, one for each seed. The first is what the others are compared
with: differences are paired by client, each client's averaged over the seeds that both have, with
Student's 95 % interval over the clients and, after it, the smallest difference that four of five
such comparisons would see. Clients that a method has no value of, such as those that were never
drawn, are left out of its differences. `--effect` names methods whose mean is compared with the
mean of others. Accuracies are in percent; times to an accuracy are read after the rounds that all
runs were tested after.

Models: `trained` is what a client's round ended with, `untuned` what it would deploy, `kept` what
it had kept of its last round, `tuned` the last that it deploys. `score` is not of test images: it
is what a client's search gave its best architecture.
"""

import argparse
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy import stats

from fedtailor import Run, summarise
from fedtailor.runs import database
from fedtailor.runs.time_to_accuracy import common_rounds, time_to

MODELS = {"trained": "trained", "untuned": "untuned", "kept": "kept", "tuned": "test_accuracy"}
TRAINING = ("training", "step")  # parts of a client's round in which networks train
POWER = 0.8  # the share of comparisons that see the smallest difference
COSTS = (
    "method", "parameters, k", "M trained", "M evaluated", "MB down", "MB up", "MB once", "CPU s",
    "MB in all", "modelled min",
)  # fmt: skip
Method: TypeAlias = list[dict[str, Any]]  # a summary for each seed


def main(words: list[str] | None = None) -> None:
    """Print what each method reached and costs, and its difference from the first one."""
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("methods", nargs="+", help="NAME=RUN,RUN: one run for each seed")
    asked.add_argument("--effect", action="append", default=[], help="NAME=METHODS/OTHERS")
    given = asked.parse_args(words)
    found = {name: runs_of(paths) for name, paths in (w.split("=", 1) for w in given.methods)}
    shown = [m for m in (*MODELS, "score") if any(values(runs, m) for runs in found.values())]
    print("Mean ± standard deviation over clients (worst 10 %):\n")
    print_table(
        ("method", "seeds", *shown),
        [[n, str(len(runs)), *(spread(runs, m) for m in shown)] for n, runs in found.items()],
    )
    print("\nOf a client's round, and in all:\n")
    print_table(COSTS, [[name, *costs(runs)] for name, runs in found.items()])
    (base, first), *others = found.items()
    goal = float(np.mean([one["untuned"]["mean"] for one in first]))
    grid = common_rounds(Run(one["run"]) for runs in found.values() for one in runs)
    print("\nPoints (95 % interval; smallest that would be seen):\n")
    head = (f"minus {base}", *shown, f"minutes to {100 * goal:.1f} % untuned")
    rows = [
        [name, *(effect([runs], [first], m) for m in shown), reach(runs, goal, grid)]
        for name, runs in others
    ]
    for name, sides in (word.split("=", 1) for word in given.effect):
        if unknown := {*sides.replace("/", ",").split(",")} - {*found}:
            asked.error(f"--effect {name}: no method is called {', '.join(sorted(unknown))}")
        more, less = ([found[one] for one in side.split(",")] for side in sides.split("/"))
        rows.append([name, *(effect(more, less, m) for m in shown), ""])
    print_table(head, rows)


def runs_of(paths: str) -> Method:
    """Summarise the runs of a method; `score` is what each client's best architecture scored."""
    found = []
    for path in paths.split(","):
        run = Run(Path(path))
        best = {row.client: row.score for row in database.architectures(run.db, "trained")}
        scores = {client: score for client, score in best.items() if score is not None}
        used = {r.client: r.cost["parameters"] for r in database.architectures(run.db, "deployed")}
        found.append(
            summarise(run) | {"score": {"per_client": scores}, "parameters": [*used.values()]}
        )
    return found


def values(runs: Method, model: str) -> list[dict[int, float]]:
    """Return by client what a model reached, for each seed in which anyone has it."""
    known = [one[MODELS.get(model, model)] for one in runs]
    return [each["per_client"] for each in known if each and each["per_client"]]


def spread(runs: Method, model: str) -> str:
    """Return mean, deviation and worst tenth over clients, each a mean over seeds."""
    seeds = [np.sort([*one.values()]) for one in values(runs, model)]
    if not seeds:
        return ""
    worst = np.mean([one[: max(1, len(one) // 10)].mean() for one in seeds])
    mean, std = (np.mean([np_of(one) for one in seeds]) for np_of in (np.mean, np.std))
    return f"{100 * mean:.1f} ± {100 * std:.1f} ({100 * worst:.1f})"


def costs(runs: Method) -> list[str]:
    """Return the cells of what a method costs: means over seeds, empty where nothing is known."""

    def mean(numbers: list[float | None], unit: float, digits: int = 1) -> str:
        known = [number for number in numbers if number is not None]
        return f"{np.mean(known) / unit:,.{digits}f}" if known else ""

    told = [one["cost"] for one in runs if one["cost"]]
    parts = [{part: p["macs"]["mean"] for part, p in one["parts"].items()} for one in told]
    sent = [{way: each and each["mean"] for way, each in one["bytes"].items()} for one in told]
    return [
        mean([p for one in runs for p in one["parameters"]], 1e3, 0),
        mean([sum(m for part, m in one.items() if part in TRAINING) for one in parts], 1e6, 0),
        mean([sum(m for part, m in one.items() if part not in TRAINING) for one in parts], 1e6, 0),
        *(mean([one[way] for one in sent], 1e6, 2) for way in ("down", "up", "once")),
        mean([one["sum"]["seconds"]["mean"] for one in told], 1.0),
        mean([sum(one["bytes"].values()) for one in runs], 1e6, 0),
        mean([one["modelled_s"] for one in runs], 60),
    ]


def effect(more: list[Method], less: list[Method], model: str) -> str:
    """Return by how many points the mean of some methods is above that of others."""
    sides = [[values(runs, model) for runs in side] for side in (more, less)]
    every = [seeds for side in sides for seeds in side]
    pairs: dict[int, list[float]] = {}  # by client: the difference in each seed that all have
    for seed in range(min(map(len, every))):
        for client in set.intersection(*(set(seeds[seed]) for seeds in every)):
            one, other = (np.mean([seeds[seed][client] for seeds in side]) for side in sides)
            pairs.setdefault(client, []).append(100 * float(one - other))
    found = [float(np.mean(each)) for each in pairs.values()]
    if len(found) < 2:
        return ""
    error, mean, free = stats.sem(found), float(np.mean(found)), len(found) - 1
    half = stats.t.ppf(0.975, free) * error
    seen = half + stats.t.ppf(POWER, free) * error
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f}; {seen:.1f})"


def reach(runs: Method, goal: float, grid: set[int]) -> str:
    """Return the modelled minutes until a mean untuned accuracy, for every seed."""
    times = [time_to(Run(one["run"]), goal, rounds=grid) for one in runs]
    return ", ".join("never" if t is None else f"{t['modelled_s'] / 60:.1f}" for t in times)


def print_table(head: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for line in (list(head), ["---"] * len(head), *rows):
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
