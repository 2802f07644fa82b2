"""Compare methods over clients and seeds: the tables of results/, as Markdown.

    python examples/compare.py fedavg=runs/avg-0,runs/avg-1 perfedrlnas=runs/rl-0,runs/rl-1

Each argument is a name and its runs, one for each seed. The first is what the others are compared
with: differences are paired by client, each client's averaged over the seeds that both have, with
Student's 95 % interval over the clients. Accuracies are in percent; times to an accuracy are read
after the rounds that all runs were tested after.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fedtailor import Run, summarise
from fedtailor.runs.time_to_accuracy import common_rounds, time_to

HEAD = ("method", "seeds", "tuned", "worst 10 %", "untuned", "trained", "MB up", "modelled min")


def main(words: list[str]) -> None:
    """Print a line for each method, and its difference from the first one."""
    found = {}
    for word in words:
        name, _, paths = word.partition("=")
        found[name] = [summarise(Run(Path(path))) for path in paths.split(",")]
    print_table(HEAD, [row(name, runs) for name, runs in found.items()])
    base, *others = found.items()
    goal = float(np.mean([one["untuned"]["mean"] for one in base[1]]))
    grid = common_rounds(Run(one["run"]) for runs in found.values() for one in runs)
    rows = []
    for name, runs in others:
        cells = [difference(runs, base[1], key) for key in ("test_accuracy", "untuned")]
        rows.append([name, *cells, reach(runs, goal, grid)])
    title = f"minutes to {100 * goal:.1f} % untuned"
    print()
    print_table((f"minus {base[0]}", "tuned", "untuned", title), rows)


def row(name: str, runs: list[dict[str, Any]]) -> list[str]:
    """Return a method's line: means over its seeds."""
    tuned = over(runs, "test_accuracy", "mean"), over(runs, "test_accuracy", "std")
    trained = "" if runs[0].get("trained") is None else f"{over(runs, 'trained', 'mean'):.1f}"
    return [
        name,
        str(len(runs)),
        f"{tuned[0]:.1f} ± {tuned[1]:.1f}",
        f"{over(runs, 'test_accuracy', 'worst10'):.1f}",
        f"{over(runs, 'untuned', 'mean'):.1f}",
        trained,
        f"{np.mean([one['bytes']['up'] for one in runs]) / 1e6:,.0f}",
        f"{np.mean([one['modelled_s'] for one in runs]) / 60:.1f}",
    ]


def over(runs: list[dict[str, Any]], key: str, what: str) -> float:
    """Return a number's mean over the seeds, in percent."""
    return 100 * float(np.mean([one[key][what] for one in runs]))


def difference(runs: list[dict[str, Any]], base: list[dict[str, Any]], key: str) -> str:
    """Return the mean difference over clients and its interval, in points."""
    seeds = min(len(runs), len(base))
    each = [
        [a[key]["per_client"][c] - b[key]["per_client"][c] for c in b[key]["per_client"]]
        for a, b in zip(runs[:seeds], base[:seeds], strict=True)
    ]
    values = 100 * np.mean(each, axis=0)
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{values.mean():+.1f} ({values.mean() - half:+.1f} to {values.mean() + half:+.1f})"


def reach(runs: list[dict[str, Any]], goal: float, grid: set[int]) -> str:
    """Return the modelled minutes until a mean untuned accuracy, for every seed."""
    times = [time_to(Run(one["run"]), goal, rounds=grid) for one in runs]
    return ", ".join("never" if t is None else f"{t['modelled_s'] / 60:.1f}" for t in times)


def print_table(head: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for line in (list(head), ["---"] * len(head), *rows):
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
