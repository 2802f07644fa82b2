"""What the tables and the pictures of a report are both made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.client_names import label_of
from fedtailor.runs import database
from fedtailor.runs.comparison import Group, accuracies, interval, means, partition, same_data
from fedtailor.runs.folder import Run, asked
from fedtailor.runs.summary import evaluated_round, headline, worst_tenth

BASELINE = "local"  # the algorithm of clients that train alone


@dataclass(frozen=True)
class Labels:
    """How many images of each class each client has."""

    counts: NDArray[np.int64]  # (clients, classes)
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Gain:
    """What one of several groups gives each client beyond something simpler."""

    group: int  # its place among the groups
    over: str  # the simpler thing
    per_client: dict[int, float]  # difference of accuracies


@dataclass(frozen=True)
class Point:
    """A group's untuned accuracy after a round, over clients, and what was spent until then."""

    round: int
    mean: float
    low: float | None
    high: float | None
    worst10: float
    megabytes: float
    seconds: float


def short(name: str) -> str:
    """Return an algorithm's or space's name without the folders of a user's own file."""
    return name.rpartition("/")[2]


def algorithm(group: Group) -> str:
    """Return the name of a group's algorithm."""
    return asked(group.runs[0], "algorithm", "name")


def baseline(groups: Sequence[Group]) -> int | None:
    """Return the place of the first tested group whose clients train alone."""
    for place, group in enumerate(groups):
        if algorithm(group) == BASELINE and group.accuracies:
            return place
    return None


def first_runs(groups: Sequence[Group]) -> list[Run]:
    """Return the first seed of each group."""
    return [group.runs[0] for group in groups]


def gains(groups: Sequence[Group]) -> list[Gain]:
    """Compare with training alone where one of several did that, else with untuned models."""
    alone = baseline(groups)
    if len(groups) > 1 and alone is not None:
        base, others = groups[alone], [i for i in range(len(groups)) if i != alone]
        found = [
            Gain(i, "training alone", _minus(groups[i].accuracies, base.accuracies))
            for i in others
            if same_data([base.runs[0], groups[i].runs[0]])
        ]
    else:
        found = [
            Gain(i, "the untuned model", _minus(group.accuracies, untuned(group)))
            for i, group in enumerate(groups)
            if deployed_model(group) != "untuned"
        ]
    return [gain for gain in found if gain.per_client]


def untuned(group: Group, score: str = "accuracy") -> dict[int, float]:
    """Return each client's last untuned test accuracy, its mean over seeds."""
    return means([accuracies(run, "untuned", score) for run in group.runs])


def deployed_model(group: Group) -> str:
    """Return the model that counts."""
    return headline(group.runs[0], evaluated_round(group.runs[0]))


def clients_in_order(groups: Sequence[Group]) -> list[int]:
    """Return all clients, the one that gains most first: the order of every picture and table."""
    known: set[int] = set()
    for group in groups:
        known |= group.accuracies.keys()
        labels = label_counts(group.runs[0])
        known |= set(range(len(labels.counts))) if labels else set()
    found = gains(groups)
    gain = found[0].per_client if found else {}
    return sorted(known, key=lambda client: (-gain.get(client, -np.inf), client))


def curve(group: Group) -> list[Point]:
    """Follow a group over the rounds after which all its seeds were tested."""
    rounds = set.intersection(*(set(database.tested_rounds(run.db)) for run in group.runs))
    spent = [database.spent_until(run.db) for run in group.runs]
    found = []
    for round in sorted(rounds):
        rows = [
            dict(database.of_clients(run.db, round, "test", "untuned", "accuracy"))
            for run in group.runs
        ]
        values = list(means(rows).values())
        over = interval(values)
        if over is not None:
            sent, seconds = np.mean([each[round] for each in spent], axis=0).tolist()
            tenth = worst_tenth(np.array(values))
            found.append(Point(round, over.mean, over.low, over.high, tenth, sent / 1e6, seconds))
    return found


def client_titles(groups: Sequence[Group]) -> dict[int, str]:
    """Return clients' names with their numbers; {} where they have none or runs disagree."""
    runs = [run for group in groups for run in group.runs]
    known = [run.partition("names").get("names", np.zeros(0, str)).tolist() for run in runs]
    if any(names != known[0] for names in known):
        return {}
    return {number: label_of(known[0], number) for number in range(len(known[0]))}


def label_counts(run: Run) -> Labels | None:
    """Return how many images of each class each client has, if that is known here."""
    arrays = partition(run)
    if not arrays:
        return None
    return Labels(arrays["counts"], tuple(str(name) for name in arrays["classes"]))


def shifts(run: Run) -> list[str]:
    """Return how each client's images differ, or nothing where they do not or none are here."""
    return [str(shift) for shift in partition(run).get("shifts", ())]


def unseen_tests(run: Run) -> NDArray[np.int64] | None:
    """Return by client and class how many test images are of no class that it trains on."""
    return partition(run).get("unseen")


def _minus(values: dict[int, float], base: dict[int, float]) -> dict[int, float]:
    return {client: value - base[client] for client, value in values.items() if client in base}
