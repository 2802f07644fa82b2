"""The numbers behind the pictures of a search; scripts may use them, too."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.core.space import Task
from fedtailor.runs.config import budgets_of
from fedtailor.runs.folder import Run
from fedtailor.runs.search_state import searched
from fedtailor.runs.summary import evaluated_round
from fedtailor.search.genes import offsets
from fedtailor.search.policy import acting

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
    found = [Search(place, run, searched(run)) for place, run in enumerate(runs)]
    return [one for one in found if one.found.get("choices")]


def deployed(run: Run) -> Deployed | None:
    """Return the networks of the last tested round, if the run's space has a choice of them."""
    last = evaluated_round(run)
    rows = [row[1:] for row in _architectures(run, "deployed") if row[0] == last]
    if not rows:
        return None
    genes = {client: tuple(json.loads(arch)) for client, arch, _ in rows}
    return Deployed(genes, {client: json.loads(prices) for client, _, prices in rows})


def matters(run: Run, archs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say for every gene of architectures (rows) whether another option made another network."""
    space = run.config.space
    first = list(offsets(space)[:-1])
    return np.stack([acting(space, tuple(arch))[first].numpy() for arch in archs.tolist()])


def over_rounds(run: Run, name: str) -> Band:
    """Follow a number that the server has of the clients that took part in a round.

    Every client seen so far counts with its latest value: single rounds are noise.
    """
    rows = run.query(
        "SELECT round, client, value FROM metric WHERE split = 'server' AND name = ?"
        " ORDER BY round",
        name,
    )
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
    there = deployed(run)
    if there is None or run.config.budget.memory_mb is None:
        return []
    drawn: dict[int, list[bool]] = {}
    for _, client, _, prices in _architectures(run, "trained"):
        drawn.setdefault(client, []).append(json.loads(prices).get("memory", 0.0) > 1)
    dealt = run.partition()
    task = Task(tuple(dealt["shape"].tolist()), len(dealt["classes"]))
    budgets = budgets_of(run.config, max(there.genes) + 1, task)
    found = [
        Memory(client, budget, prices["memory_mb"], tuple(drawn.get(client, ())))
        for client, prices in there.costs.items()
        if (budget := budgets[client].memory_mb) is not None
    ]
    return sorted(found, key=lambda one: (one.budget, one.client))


def _architectures(run: Run, role: str) -> list[tuple[int, int, str, str]]:
    """Return round, client, genes and costs; folders of before there were roles have none."""
    columns = {name for (name,) in run.query("SELECT name FROM pragma_table_info('architecture')")}
    if "role" not in columns:
        return []
    sql = "SELECT round, client, arch, cost FROM architecture WHERE role = ? ORDER BY round, client"
    return run.query(sql, role)


def mean_entropies(found: dict[str, Any]) -> dict[str, float]:
    """Return how undecided each choice is, on average over the clients' policies."""
    own, shared = found.get("clients", {}), found.get("shared")
    rows = [one["entropy"] for one in (own.values() if own or not shared else [shared])]
    return {
        name: sum(row[name] for row in rows) / len(rows)
        for name in (choice["name"] for choice in found.get("choices", []))
        if rows
    }
