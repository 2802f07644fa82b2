"""What the tables and the pictures of a report are both made of."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.runs.clients import client_names
from fedtailor.runs.folder import Run, asked
from fedtailor.runs.summary import evaluated_round, headline, spread

BASELINE = "local"  # the algorithm of clients that train alone


@dataclass(frozen=True)
class Labels:
    """How many images of each class each client has."""

    counts: NDArray[np.int64]  # (clients, classes)
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Gain:
    """What one of several runs gives each client beyond something simpler."""

    run: int  # its place among the runs
    over: str  # the simpler thing
    per_client: dict[int, float]  # difference of accuracies


def short(name: str) -> str:
    """Return an algorithm's or space's name without the folders of a user's own file."""
    return name.rpartition("/")[2]


def algorithm(run: Run) -> str:
    """Return the name of a run's algorithm."""
    return asked(run, "algorithm", "name")


def titles(runs: Sequence[Run]) -> list[str]:
    """Name the runs by their algorithms, and those that are not alone in it by their folders."""
    algorithms = [short(algorithm(run)) for run in runs]
    folders = [run.path.resolve() for run in runs]
    named = [f"{name} ({path.name})" for name, path in zip(algorithms, folders, strict=True)]
    exact = [f"{name} ({path})" for name, path in zip(algorithms, folders, strict=True)]
    return [
        name if algorithms.count(name) == 1 else short_ if named.count(short_) == 1 else long
        for name, short_, long in zip(algorithms, named, exact, strict=True)
    ]


def baseline(runs: Sequence[Run]) -> int | None:
    """Return the place of the first tested run whose clients train alone."""
    for place, run in enumerate(runs):
        if algorithm(run) == BASELINE and accuracies(run):
            return place
    return None


def accuracies(run: Run, model: str | None = None, score: str = "accuracy") -> dict[int, float]:
    """Return each client's last test accuracy, of the model it would deploy or of another."""
    round = evaluated_round(run)
    found = spread(run, round, model or headline(run, round), score)
    return {int(client): value for client, value in found["per_client"].items()} if found else {}


def gains(runs: Sequence[Run]) -> list[Gain]:
    """Compare with training alone where a run of several did that, else with untuned models."""
    alone = baseline(runs)
    if len(runs) > 1 and alone is not None:
        base, others = accuracies(runs[alone]), [i for i in range(len(runs)) if i != alone]
        found = [
            Gain(i, "training alone", _minus(accuracies(runs[i]), base))
            for i in others
            if same_clients([runs[alone], runs[i]])
        ]
    else:
        found = [
            Gain(i, "the untuned model", _minus(accuracies(run), accuracies(run, "untuned")))
            for i, run in enumerate(runs)
            if headline(run, evaluated_round(run)) != "untuned"
        ]
    return [gain for gain in found if gain.per_client]


def clients_in_order(runs: Sequence[Run]) -> list[int]:
    """Return all clients, the one that gains most first: the order of every picture and table."""
    known: set[int] = set()
    for run in runs:
        known |= accuracies(run).keys()
        labels = label_counts(run)
        known |= set(range(len(labels.counts))) if labels else set()
    found = gains(runs)
    gain = found[0].per_client if found else {}
    return sorted(known, key=lambda client: (-gain.get(client, -np.inf), client))


def client_titles(runs: Sequence[Run]) -> dict[int, str]:
    """Return what all clients are called in tables and pictures; by numbers where runs disagree."""
    known = [client_names(run) for run in runs]
    if any(names != known[0] for names in known):
        return {number: str(number) for names in known for number in range(len(names))}
    return dict(enumerate(known[0]))


def label_counts(run: Run) -> Labels | None:
    """Return how many images of each class each client has, if that is known here."""
    partition = _partition(run)
    if not partition:
        return None
    return Labels(partition["counts"], tuple(str(name) for name in partition["classes"]))


def shifts(run: Run) -> list[str]:
    """Return how each client's images differ, or nothing where they do not or none are here."""
    return [str(shift) for shift in _partition(run).get("shifts", ())]


def unseen_tests(run: Run) -> NDArray[np.int64] | None:
    """Return by client and class how many test images are of no class that it trains on."""
    return _partition(run).get("unseen")


def same_clients(runs: Sequence[Run]) -> bool:
    """Tell whether the runs dealt the same images to the same clients, as far as is known."""
    known = [partition for run in runs if (partition := _partition(run))]
    return all(
        np.array_equal(first.get(key, ()), other.get(key, ()))
        for first, other in itertools.pairwise(known)
        for key in ("rows", "bounds", "counts", "shifts")
    )


def _minus(values: dict[int, float], base: dict[int, float]) -> dict[int, float]:
    return {client: value - base[client] for client, value in values.items() if client in base}


def _partition(run: Run) -> dict[str, NDArray[Any]]:
    """Return which images are whose; nothing of a run whose clients keep their data."""
    return run.partition() if (run.path / "partition.npz").is_file() else {}
