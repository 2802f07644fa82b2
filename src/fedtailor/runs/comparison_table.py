"""Methods beside one another as rows of numbers: what they reached, their differences, their costs.

A method is a group of runs, one for each seed. Of a client counts its mean over the seeds; means,
deviations, worst tenths and intervals are over clients. Accuracies are in percent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import safetensors

from fedtailor.core.errors import UserError, nearest
from fedtailor.runs import database
from fedtailor.runs.comparison import Group, accuracies, interval, means, same_data
from fedtailor.runs.cost_summary import costs
from fedtailor.runs.folder import WEIGHTS, Run
from fedtailor.runs.summary import trained, worst_tenth
from fedtailor.runs.time_to_accuracy import common_rounds, time_to

# trained: what a client's round ended with; kept: what it had kept of its last round; tuned: the
# last that it deploys; score: of no test images, but what its search gave its best architecture
MODELS = ("tuned", "untuned", "kept", "trained", "score")
TRAINING = (
    "training",
    "step",
    "supernet",
    "own network",
)  # parts of a client's round in which networks train
POWER = 0.8  # the share of comparisons that see the smallest difference
Row: TypeAlias = dict[str, Any]  # numbers by column; a column without a number is None


@dataclass(frozen=True)
class Table:
    """Methods beside one another."""

    base: str  # the method that others are compared with
    models: tuple[str, ...]  # that some method has
    rows: list[Row]
    effects: list[Row]  # means of some methods minus means of others


def compare(
    groups: Sequence[Group], base: str | None = None, effects: Mapping[str, str] = {}
) -> Table:
    """Put methods beside one another.

    Args:
        groups: a method each.
        base: the name of the one that others are compared with; by default the first.
        effects: by a name, `A,B/C,D`: the mean of methods A and B minus that of C and D.
    """
    named = {group.name: group for group in groups}
    first = groups[0] if base is None else _named(named, base)
    reached = {group.name: {m: values(group, m) for m in MODELS} for group in groups}
    models = tuple(m for m in MODELS if any(found[m] for found in reached.values()))
    rounds = common_rounds(run for group in groups for run in group.runs)
    goal = interval(reached[first.name]["untuned"].values())
    rows = []
    for group in groups:
        row: Row = {"method": group.name, "seeds": len(group.runs)}
        row["clients"] = len(reached[group.name]["tuned"])
        for model in models:
            row |= _spread(model, reached[group.name][model])
        alike = row["same_data"] = same_data([group.runs[0], first.runs[0]])
        for model in models:
            other = reached[first.name][model]
            known = alike and group is not first
            row |= _difference(model, reached[group.name][model] if known else {}, other)
        row |= _costs(group)
        row["minutes_to_base"] = goal and _minutes_to(group, goal.mean, rounds)
        rows.append(row)
    return Table(first.name, models, rows, _effects(named, reached, models, effects))


def values(group: Group, model: str) -> dict[int, float]:
    """Return what each client of a method reached by a model, its mean over seeds."""
    return means([found for run in group.runs if (found := _of_run(run, model))] or [{}])


def _of_run(run: Run, model: str) -> dict[int, float]:
    if model == "tuned":
        return accuracies(run)
    if model == "trained":
        found = trained(run)
        return dict(found["per_client"]) if found else {}
    if model == "score":
        best = {row.client: row.score for row in database.architectures(run.db, "trained")}
        return {client: score for client, score in best.items() if score is not None}
    return accuracies(run, model)


def _spread(model: str, found: dict[int, float]) -> Row:
    numbers = 100 * np.array(list(found.values()))
    known = len(numbers) > 0
    return {
        f"{model}_mean": float(numbers.mean()) if known else None,
        f"{model}_std": float(numbers.std()) if known else None,
        f"{model}_worst10": worst_tenth(numbers) if known else None,
    }


def _difference(model: str, found: dict[int, float], other: dict[int, float]) -> Row:
    """Return by how many points clients differ, its interval, and what would be seen.

    The last is the smallest difference that four of five such comparisons would see.
    """
    told = interval([100 * (found[c] - other[c]) for c in sorted(found.keys() & other.keys())])
    names = [f"{model}_minus_base{end}" for end in ("", "_low", "_high", "_seen_from")]
    if told is None or told.low is None or told.high is None:
        return dict.fromkeys(names) | {names[0]: told and told.mean}
    from scipy.stats import t  # takes long to import

    half, free = (told.high - told.low) / 2, told.clients - 1
    seen = half * (1 + float(t.ppf(POWER, free) / t.ppf(0.975, free)))
    return dict(zip(names, (told.mean, told.low, told.high, seen), strict=True))


def _effects(
    named: Mapping[str, Group],
    reached: Mapping[str, Mapping[str, dict[int, float]]],
    models: Sequence[str],
    effects: Mapping[str, str],
) -> list[Row]:
    found = []
    for name, text in effects.items():
        sides = [[_named(named, one).name for one in side.split(",")] for side in text.split("/")]
        if len(sides) != 2:
            raise UserError(f"effect: {name} must be METHODS/OTHERS, such as a,b/c,d, not {text}")
        row: Row = {"method": name}
        for model in models:
            more, less = (_mean_of([reached[one][model] for one in side]) for side in sides)
            row |= _difference(model, more, less)
        found.append(row)
    return found


def _mean_of(sides: Sequence[dict[int, float]]) -> dict[int, float]:
    """Return the mean over methods of the clients that all of them have."""
    shared = set.intersection(*(set(one) for one in sides))
    return {client: float(np.mean([one[client] for one in sides])) for client in sorted(shared)}


def _costs(group: Group) -> Row:
    """Return means over seeds; of a client's round where nothing else is said."""
    told = [found for run in group.runs if (found := costs(run))]
    macs = [{part: p["macs"]["mean"] for part, p in one["parts"].items()} for one in told]
    sent = [database.bytes_sent(run.db) for run in group.runs]
    seconds = [database.seconds_spent(run.db) for run in group.runs]
    ways = {way: [one["bytes"][way]["mean"] for one in told if one["bytes"][way]] for way in WAYS}
    return {
        "parameters": _mean([p for run in group.runs if (p := _parameters(run)) is not None]),
        "macs_trained": _mean([_part(one, trains=True) for one in macs]),
        "macs_evaluated": _mean([_part(one, trains=False) for one in macs]),
        **{f"mb_{way}": _mean(ways[way], 1e6) for way in WAYS},
        "cpu_s": _mean([one["sum"]["seconds"]["mean"] for one in told]),
        "mb_in_all": _mean([sum(one.values()) for one in sent], 1e6),
        "wall_min": _mean([one[0] for one in seconds], 60),
        "modelled_min": _mean([one[1] for one in seconds], 60),
    }


WAYS = ("down", "up", "once")


def _part(macs: Mapping[str, float], trains: bool) -> float:
    return sum(spent for part, spent in macs.items() if (part in TRAINING) == trains)


def _parameters(run: Run) -> float | None:
    """Return the mean over clients of the parameters they deploy, or of the first saved model."""
    used = {r.client: r.cost.get("parameters") for r in database.architectures(run.db, "deployed")}
    known = [count for count in used.values() if count is not None]
    if known:
        return float(np.mean(known))
    for path in sorted((run.path / "clients").glob(f"*/{WEIGHTS}"))[:1]:
        with safetensors.safe_open(path, "np") as file:
            names = list(file.keys())
            inside = [name for name in names if name.startswith("network.")] or names  # knnper
            learned = [
                name for name in inside if not name.endswith(("running_mean", "running_var"))
            ]
            return float(sum(np.prod(file.get_slice(name).get_shape()) for name in learned))
    return None


def _minutes_to(group: Group, goal: float, rounds: set[int]) -> list[float | None]:
    """Return the modelled minutes until a mean untuned accuracy, for every seed; None: never."""
    times = [time_to(run, goal, rounds=rounds) for run in group.runs]
    return [None if time is None else time["modelled_s"] / 60 for time in times]


def _mean(numbers: Sequence[float], unit: float = 1.0) -> float | None:
    return float(np.mean(numbers)) / unit if numbers else None


def _named(named: Mapping[str, Group], name: str) -> Group:
    """Return a group by its name, or by one of its folders."""
    for group in named.values():
        folders = [str(run.path) for run in group.runs]
        if name in (group.name, *folders) or name.rstrip("/") in folders:
            return group
    raise UserError(f"to: no method is called {name!r}{nearest(name, list(named))}")
