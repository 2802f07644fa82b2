"""The numbers behind the pictures of a search; scripts may use them, too."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.runs import database
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import evaluated_round

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Search:
    """A run that searches, at its place among several runs."""

    place: int
    run: Run
    found: dict[str, Any]  # what `Algorithm.inspect` says


@dataclass(frozen=True)
class Deployed:
    """The networks that clients would use after the last tested round."""

    genes: dict[int, tuple[int, ...]]  # by client
    idle: dict[int, tuple[int, ...]]  # places of genes that make no difference
    costs: dict[int, dict[str, float]]


@dataclass(frozen=True)
class Band:
    """Something over rounds: its mean over the clients' latest values, and most of these."""

    rounds: list[int]
    mean: list[float]
    low: list[float]  # a tenth of the clients is below
    high: list[float]


@dataclass(frozen=True)
class Memory:
    """A client's memory in MB: what it has, what it would use, and what did not fit."""

    client: int
    budget: float
    deployed: float
    drawn: tuple[bool, ...]  # of the networks drawn for it, in order: whether they overflowed


def searches(runs: Sequence[Run]) -> list[Search]:
    """Return the runs that search."""
    found = [Search(place, run, database.search(run.db)) for place, run in enumerate(runs)]
    return [one for one in found if one.found.get("choices")]


def deployed(run: Run) -> Deployed | None:
    """Return the networks of the last tested round, if the run's space has a choice of them."""
    last = evaluated_round(run)
    rows = [row for row in database.architectures(run.db, "deployed") if row.round == last]
    if not rows:
        return None
    return Deployed(
        {row.client: row.genes for row in rows},
        {row.client: row.idle for row in rows},
        {row.client: row.cost for row in rows},
    )


def over_rounds(run: Run, name: str) -> Band:
    """Follow a number that the server has of the clients that took part in a round.

    Every client seen so far counts with its latest value: single rounds are noise.
    """
    rows = database.over_rounds(run.db, "server", "", name)
    latest: dict[int, float] = {}
    found = Band([], [], [], [])
    for round, some in groupby(rows, key=lambda row: row[0]):
        latest |= {client: value for _, client, value in some}
        values = list(latest.values())
        found.rounds.append(round)
        found.mean.append(float(np.mean(values)))
        found.low.append(float(np.quantile(values, 0.1)))
        found.high.append(float(np.quantile(values, 0.9)))
    return found


def memory(run: Run) -> list[Memory]:
    """Return the clients with a memory budget, the smallest first (the paper's Fig. 4)."""
    there, devices = deployed(run), database.devices(run.db)
    if there is None:
        return []
    drawn: dict[int, list[bool]] = {}
    for row in database.architectures(run.db, "trained"):
        drawn.setdefault(row.client, []).append(row.cost.get("memory", 0.0) > 1)
    found = [
        Memory(client, budget, prices["memory_mb"], tuple(drawn.get(client, ())))
        for client, prices in there.costs.items()
        if (budget := devices[client].memory_mb) is not None
    ]
    return sorted(found, key=lambda one: (one.budget, one.client))


def mean_entropies(found: dict[str, Any]) -> dict[str, float]:
    """Return how undecided each choice is, on average over the clients' policies."""
    own, shared = found.get("clients", {}), found.get("shared")
    rows = [one["entropy"] for one in (own.values() if own or not shared else [shared])]
    return {
        name: sum(row[name] for row in rows) / len(rows)
        for name in (choice["name"] for choice in found.get("choices", []))
        if rows
    }
