"""Runs beside one another: which belong together, what differs, and what chance could have done.

Seeds of one setting are a group. Its accuracy of a client is the mean over its seeds, and every
interval is Student's 95 % over clients: how far the mean would move with other such clients.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from fedtailor.runs.folder import PARTITION, Run, asked
from fedtailor.runs.summary import evaluated_round, headline, spread, worst_tenth

SURE = 0.95
# Keys by which two runs of one setting may differ: what they are for does not change a result.
NO_SETTING = ("seed", "save_models", "engine.", "data.root", "data.download")
OWNERSHIP = ("rows", "bounds", "counts", "shifts", "content")  # arrays of partition.npz
MAX_KEYS, MAX_NAME = 3, 60  # differing keys in a name, and its letters


@dataclass(frozen=True)
class Interval:
    """A mean over clients, and where it would be for other such clients; None of one client."""

    mean: float
    low: float | None
    high: float | None
    clients: int


@dataclass(frozen=True)
class Difference(Interval):
    """What a group's clients have more than those of another, client by client."""

    seeds: int  # of the group that has fewer

    @property
    def beyond_chance(self) -> bool:
        """Tell whether the interval lies on one side of zero."""
        if self.low is None or self.high is None:
            return False
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Group:
    """Runs of one setting, which differ by their seeds."""

    name: str  # the algorithm, and where others have the same, by what it differs from them
    runs: tuple[Run, ...]

    @cached_property
    def accuracies(self) -> dict[int, float]:
        """Each client's last test accuracy of the model it would deploy, its mean over seeds."""
        return means([accuracies(run) for run in self.runs])

    @cached_property
    def accuracy(self) -> Interval | None:
        """The mean over clients; None where nothing has been tested."""
        return interval(self.accuracies.values())

    @property
    def worst10(self) -> float | None:
        """The mean over the tenth of the clients that fare worst, by their means over seeds."""
        values = np.array(list(self.accuracies.values()))
        return worst_tenth(values) if len(values) else None

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return [asked(run, "seed") for run in self.runs]


def groups(runs: Sequence[Run]) -> list[Group]:
    """Put runs together that differ by their seeds only, in the order of the first of each.

    Of two runs with one seed the second begins a group of its own: it is no further seed.
    """
    found: dict[tuple[str, int], list[Run]] = {}
    seen: dict[tuple[str, int], int] = {}
    for run in runs:
        setting, seed = _setting(run), asked(run, "seed")
        turn = seen[setting, seed] = seen.get((setting, seed), 0) + 1
        found.setdefault((setting, turn), []).append(run)
    return [
        Group(name, tuple(members))
        for name, members in zip(_names(list(found.values())), found.values(), strict=True)
    ]


def paired(group: Group, base: Group) -> Difference | None:
    """Compare the clients of two groups one by one; None where that says nothing.

    That is where they share no tested client, or did not deal them the same images.
    """
    shared = sorted(group.accuracies.keys() & base.accuracies.keys())
    if not same_data([group.runs[0], base.runs[0]]):
        return None
    found = interval([group.accuracies[c] - base.accuracies[c] for c in shared])
    if found is None:
        return None
    seeds = min(len(group.runs), len(base.runs))
    return Difference(found.mean, found.low, found.high, found.clients, seeds)


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return by dotted key what the runs' configs say differently; None where a run has no such."""
    tables = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = {key: [table.get(key) for table in tables] for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def interval(values: Iterable[float]) -> Interval | None:
    """Return the mean of values and Student's interval of it; None of nothing."""
    known = np.array(list(values), dtype=np.float64)
    if not len(known):
        return None
    mean = float(known.mean())
    if len(known) == 1:
        return Interval(mean, None, None, 1)
    error = float(known.std(ddof=1)) / len(known) ** 0.5
    reach = float(stdtrit(len(known) - 1, (1 + SURE) / 2)) * error  # Student's quantile
    return Interval(mean, mean - reach, mean + reach, len(known))


def accuracies(run: Run, model: str | None = None, score: str = "accuracy") -> dict[int, float]:
    """Return each client's last test accuracy, of the model it would deploy or of another."""
    round = evaluated_round(run)
    found = spread(run, round, model or headline(run, round), score)
    return dict(found["per_client"]) if found else {}


def means(values: Sequence[dict[int, float]]) -> dict[int, float]:
    """Return each client's mean over runs, of those in which it has a value."""
    if len(values) == 1:
        return values[0]
    found: dict[int, float] = {}
    for client in sorted(set().union(*values)):
        own = [one[client] for one in values if client in one]
        found[client] = sum(own) / len(own)
    return found


def same_data(runs: Sequence[Run]) -> bool:
    """Tell whether the runs dealt the same images to the same clients, as far as is known.

    Tests must be the same. Of the others it does not matter which validate: whether these are
    trained on, and from when on, is a matter of the method (`data.join_val`).
    """
    known = [_dealt(arrays) for run in runs if (arrays := partition(run))]
    return all(
        np.array_equal(mine, other)
        for dealt in known[1:]
        for mine, other in zip(known[0], dealt, strict=True)
    )


def _dealt(arrays: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Return what must be equal: the images, and of each client its tests and all others."""
    nothing = np.zeros(0, dtype=np.int64)
    rows, bounds = (arrays.get(key, nothing) for key in ("rows", "bounds"))
    if len(bounds):
        bounds = bounds[:, [0, 2, 3]]  # a client's first image, its first test, its end
        part = np.repeat(np.arange(2 * len(bounds)), np.diff(bounds).ravel())
        rows = rows[np.lexsort((rows, part))]
    return [rows, bounds, *(arrays.get(key, nothing) for key in ("shifts", "content"))]


def count_test_images(run: Run) -> dict[int, int]:
    """Return how many test images each client has; nothing where clients keep their data."""
    bounds = partition(run).get("bounds")
    return {} if bounds is None else dict(enumerate((bounds[:, 3] - bounds[:, 2]).tolist()))


def partition(run: Run) -> dict[str, NDArray[Any]]:
    """Return which images are whose; nothing of a run whose clients keep their data."""
    return run.partition() if (run.path / PARTITION).is_file() else {}


def flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of a table of tables by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return found


def _setting(run: Run) -> str:
    """Return what must be equal of runs that are repetitions: the config and the images."""
    told = {key: value for key, value in flat(run.config).items() if not key.startswith(NO_SETTING)}
    arrays, data = partition(run), blake2b()
    for key in OWNERSHIP:
        data.update(np.ascontiguousarray(arrays.get(key, np.zeros(0))).tobytes())
    return json.dumps([told, data.hexdigest()], sort_keys=True, default=str)


def _names(members: list[list[Run]]) -> list[str]:
    """Name groups by algorithm, those not alone in it by what differs, else by a folder."""
    first = [runs[0] for runs in members]
    algorithms = [asked(run, "algorithm", "name").rpartition("/")[2] for run in first]
    found = []
    for run, name in zip(first, algorithms, strict=True):
        alike = [other for other, its in zip(first, algorithms, strict=True) if its == name]
        found.append(name if len(alike) == 1 else f"{name} ({_apart(run, alike)})")
    folders = [
        f"{name} ({run.path.resolve()})" for name, run in zip(algorithms, first, strict=True)
    ]
    return [a if found.count(a) == 1 else b for a, b in zip(found, folders, strict=True)]


def _apart(run: Run, alike: list[Run]) -> str:
    """Say by what a run differs from those of the same algorithm, or name its folder."""
    rows = {k: v for k, v in differing(alike).items() if not k.startswith(NO_SETTING)}
    own = {key: row[alike.index(run)] for key, row in rows.items()}
    text = ", ".join(_told(key.removeprefix("algorithm."), value) for key, value in own.items())
    return text if 0 < len(own) <= MAX_KEYS and len(text) <= MAX_NAME else run.path.resolve().name


def _told(key: str, value: Any) -> str:
    """Say what a key is; a word needs no key: names stand in titles, legends and tables."""
    if isinstance(value, str):
        return value
    text = json.dumps(value) if isinstance(value, list) else str(value)
    return f"{key} = {'none' if value is None else text}"
