"""The numbers behind the pictures of a search; scripts may use them, too."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from fedtailor.runs import database
from fedtailor.runs.archives import archives
from fedtailor.runs.comparison import Group
from fedtailor.runs.folder import Run, asked
from fedtailor.runs.summary import evaluated_round

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Search:
    """The first seed of a setting that searches, at its place among several settings."""

    place: int
    run: Run
    found: dict[str, Any]  # what `what_is_known` says


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


def searches(groups: Sequence[Group]) -> list[Search]:
    """Return the settings that search, by their first seeds."""
    runs = [group.runs[0] for group in groups]
    found = [Search(place, run, what_is_known(run)) for place, run in enumerate(runs)]
    return [one for one in found if one.found.get("choices")]


def what_is_known(run: Run) -> dict[str, Any]:
    """Return what `Algorithm.inspect` says; of clients that search for themselves, their archives.

    An archive stands for a policy: the shares of its members are the probabilities of options.
    """
    return _known(run, run.last_round())


@lru_cache(maxsize=32)
def _known(run: Run, _round: int) -> dict[str, Any]:
    """Read it once for all pictures: of many clients it is large."""
    found = database.search(run.db)
    if "clients" in found or not found.get("choices"):
        return found
    own = {
        client: _leaning(found["choices"], one["archive"]) for client, one in archives(run).items()
    }
    return found | {"clients": own}


def option_name(search: Search, choice: dict[str, Any], gene: int) -> str:
    """Say what an option is; a bit mask of a relaxed DARTS edge by its live operations."""
    space = asked(search.run, "space")
    if space.get("name") == "darts" and space.get("form") == "relaxed":
        return alive_operations(space["operations"], choice["name"], gene)
    return str(choice["options"][gene])


def alive_operations(operations: str, edge: str, mask: int) -> str:
    """Name the live operations of an edge, in the order of its bits; none where it was removed."""
    from fedtailor.spaces._darts import KINDS, NAMES, OPERATION_SETS
    from fedtailor.spaces._darts_cell import EDGES

    names = [
        f"{kind} {NAMES[source]} to {NAMES[target]}" for kind in KINDS for source, target in EDGES
    ]
    offered = [edge for cell in OPERATION_SETS[operations] for edge in cell][names.index(edge)]
    return "+".join(name for bit, name in enumerate(offered) if mask >> bit & 1) or "none"


def _leaning(choices: list[dict[str, Any]], archs: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return of each choice the shares of its options among architectures, and their entropy."""
    shares, entropy = {}, {}
    for choice, genes in zip(choices, zip(*archs, strict=True), strict=True):
        taken, options = Counter(genes), range(len(choice["options"]))
        shares[choice["name"]] = [taken[option] / len(archs) for option in options]
        entropy[choice["name"]] = _entropy(shares[choice["name"]])
    return {"probabilities": shares, "entropy": entropy}


def _entropy(shares: Sequence[float]) -> float:
    """Return how undecided shares are: 0 one has all, 1 all are equal."""
    return float(entr(shares).sum() / np.log(max(len(shares), 2)))


def deployed(run: Run) -> Deployed | None:
    """Return the networks of the last tested round, if the run's space has a choice of them."""
    return _deployed(run, evaluated_round(run))


@lru_cache(maxsize=32)
def _deployed(run: Run, last: int | None) -> Deployed | None:
    """Read them once for all pictures."""
    rows = database.architectures(run.db, "deployed", last)
    if last is None or not rows:
        return None
    return Deployed(
        {row.client: row.genes for row in rows},
        {row.client: row.idle for row in rows},
        {row.client: row.cost for row in rows},
    )


def over_rounds(run: Run, name: str) -> Band:
    """Follow a number that the server has of the clients that took part in a round.

    Where it has no entropy of policies, it is that of the clients' archives. Every client seen so
    far counts with its latest value: single rounds are noise.
    """
    rows = database.over_rounds(run.db, "server", "", name)
    if name == "entropy" and not rows:
        rows = _archive_entropies(run)
    return _band(rows)


def _archive_entropies(run: Run) -> list[tuple[int, int, float]]:
    """Return round, client and the mean entropy over choices of what the client's archive has."""
    choices = database.search(run.db).get("choices", [])
    rows = database.architectures(run.db, "archive") if choices else []
    found = []
    for (round, client), some in groupby(rows, key=lambda row: (row.round, row.client)):
        entropies = _leaning(choices, [row.genes for row in some])["entropy"].values()
        found.append((round, client, float(np.mean(list(entropies)))))
    return found


def _band(rows: Iterable[tuple[int, int, float]]) -> Band:
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
