"""How well surrogates predict, and how good what was proposed is; scripts may use it, too.

Scores are only ever set beside others of the same client, iteration and weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedtailor.runs.comparison import Interval, interval
from fedtailor.runs.folder import Run
from fedtailor.runs.offspring_table import Floats, OffspringTable, offspring_table

ByRoundAndClient = dict[tuple[int, int], float]


@dataclass(frozen=True)
class Scale:
    """How scores of a search are told."""

    name: str
    unit: str
    times: float


@dataclass(frozen=True)
class Ranking:
    """How a surrogate ranked what it chose: Kendall's tau-b among offspring scored together."""

    tau: ByRoundAndClient  # mean over iterations; only of what can be ranked
    pairs: dict[int, int]  # compared, by round


def offspring_of(run: Run) -> OffspringTable | None:
    """Return what a run noted of offspring, if it did."""
    return _offspring(run, run.last_round())


@lru_cache(maxsize=32)
def _offspring(run: Run, _round: int) -> OffspringTable | None:
    return offspring_table(run.db)


def scale(run: Run) -> Scale:
    """Say what scores are: accuracies in percent or mean log-probabilities, and of which images."""
    asked = run.config.get("algorithm", {})
    images = "test" if asked.get("accuracy") == "test" else "validation"
    if asked.get("fitness", "accuracy") == "accuracy":
        return Scale(f"{images} accuracy", "points", 100.0)
    return Scale(f"{images} log-likelihood", "nats", 1.0)


def litters(table: OffspringTable) -> list[slice]:
    """Return the rows of offspring that were scored together: one client's of an iteration."""
    keys = np.stack([table.round, table.client, table.iteration])
    cuts = (np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1).tolist()
    return [slice(*ends) for ends in zip([0, *cuts], [*cuts, len(table)], strict=True)]


def centred(table: OffspringTable) -> tuple[Floats, Floats]:
    """Return what was predicted and measured, each less its mean over those scored together."""
    found = table.predicted.copy(), table.measured.copy()
    for rows in litters(table):
        for column in found:
            column[rows] -= column[rows].mean()
    known = ~np.isnan(found[0])
    return found[0][known], found[1][known]


def ranking(table: OffspringTable) -> Ranking:
    """Compare the order of predictions with that of scores, among those scored together.

    Where all predictions or all scores are equal there is no order, and it does not count.
    """
    taus: dict[tuple[int, int], list[float]] = {}
    pairs: dict[int, int] = {}
    for rows in litters(table):
        tau = kendall(table.predicted[rows], table.measured[rows])
        if tau is not None:
            round, number = int(table.round[rows.start]), rows.stop - rows.start
            taus.setdefault((round, int(table.client[rows.start])), []).append(tau)
            pairs[round] = pairs.get(round, 0) + number * (number - 1) // 2
    return Ranking({key: float(np.mean(some)) for key, some in taus.items()}, pairs)


def kendall(first: Floats, second: Floats) -> float | None:
    """Return tau-b; None where one of the two has no order. scipy's, without its slow p-value."""
    signs = [np.sign(np.subtract.outer(each, each)) for each in (first, second)]
    untied = [float((sign != 0).sum()) for sign in signs]
    if not all(untied) or np.isnan(first).any():
        return None
    return float((signs[0] * signs[1]).sum() / np.sqrt(untied[0] * untied[1]))


def advantage(table: OffspringTable) -> ByRoundAndClient:
    """Return how far offspring score above the population that they were proposed to join.

    Only where both were scored with the same weights.
    """
    return _means(table, table.measured - table.population)


def survival(table: OffspringTable) -> ByRoundAndClient:
    """Return the share of offspring that survived, where all were scored with the same weights."""
    return _means(table, np.where(np.isnan(table.population), np.nan, table.survived))


def scores(table: OffspringTable) -> ByRoundAndClient:
    """Return the mean score of offspring."""
    return _means(table, table.measured)


def _means(table: OffspringTable, values: Floats) -> ByRoundAndClient:
    found: dict[tuple[int, int], list[float]] = {}
    known = ~np.isnan(values)
    keys = zip(table.round[known].tolist(), table.client[known].tolist(), strict=True)
    for key, value in zip(keys, values[known].tolist(), strict=True):
        found.setdefault(key, []).append(value)
    return {key: sum(some) / len(some) for key, some in found.items()}


def by_round(values: ByRoundAndClient) -> dict[int, Interval]:
    """Return of each round the mean over its clients and where it lies."""
    found: dict[int, list[float]] = {}
    for (round, _), value in values.items():
        found.setdefault(round, []).append(value)
    return {round: one for round, some in sorted(found.items()) if (one := interval(some))}


def over_all(values: ByRoundAndClient) -> Interval | None:
    """Return the mean over clients of each one's mean over its rounds."""
    return interval(_by_client(values.items()).values())


def paired_difference(first: ByRoundAndClient, second: ByRoundAndClient) -> Interval | None:
    """Return what the first has more, client by client, in the rounds that a client was in both."""
    shared = first.keys() & second.keys()
    return interval(_by_client((key, first[key] - second[key]) for key in shared).values())


def _by_client(values: Iterable[tuple[tuple[int, int], float]]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for (_, client), value in sorted(values):
        found.setdefault(client, []).append(value)
    return {client: sum(some) / len(some) for client, some in found.items()}
