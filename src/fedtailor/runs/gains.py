"""Personalisation gain: how much better a client's own network suits its data than others' do.

Paper: Mushtaq et al. 2023, "Distributed Architecture Search Over Heterogeneous Distributions"
(SPIDER), Eq. 6. With p_ij the test accuracy of client j's network, tuned on client i's data,
g_i is the mean of p_ii - p_ij over all others j, and the gain of a run the mean of all g_i.
"""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.runs import pair_table
from fedtailor.runs.folder import Run, asked

Floats = NDArray[np.float64]
FEW = 8  # clients: networks are dealt to them in all 40,320 ways
DEALT = 9_999  # ways that are tried with more clients


@dataclass(frozen=True)
class Chance:
    """How often networks that are dealt to the clients at random do as well as their own."""

    p: float
    ways: int  # of dealing them
    all: bool  # whether these are all there are


@dataclass(frozen=True)
class Gain:
    """Every client's network on every client's data: whose data by row, whose network by column."""

    clients: tuple[int, ...]
    untuned: Floats
    tuned: Floats

    @cached_property
    def of_clients(self) -> Floats:
        """Return g_i of every client."""
        own = self.tuned.diagonal()[:, None]
        return (own - self.tuned).sum(axis=1) / (len(own) - 1)

    @cached_property
    def others(self) -> Floats:
        """Return of every client how others' networks do on its data, on average."""
        return self.tuned.diagonal() - self.of_clients

    @cached_property
    def chance(self) -> Chance:
        """Test whether the mean gain could be one of networks that were dealt at random.

        The gains of clients are no independent values, since all are compared with the same
        networks: so these are dealt anew, not clients drawn. One-sided; always the same ways.
        """
        count = len(self.clients)
        if count <= FEW:
            ways = np.array(list(itertools.permutations(range(count))))
        else:
            rng = np.random.default_rng(0)
            ways = np.stack([rng.permutation(count) for _ in range(DEALT)])
        # What all other networks do is the same however they are dealt: own ones decide.
        dealt = self.tuned[np.arange(count), ways].sum(axis=1)
        as_good = int((dealt >= np.trace(self.tuned) - 1e-9).sum())
        if count <= FEW:
            return Chance(as_good / len(ways), len(ways), all=True)
        return Chance((1 + as_good) / (1 + len(ways)), len(ways), all=False)


def gain_of(run: Run, weights: str, epochs: int, clients: tuple[int, ...]) -> Gain:
    """Read the pairs of some clients, all of which must be there."""
    pairs = {(p.client, p.network): p for p in pair_table.tuned_pairs(run.db, weights, epochs)}
    table = [[pairs[client, network] for network in clients] for client in clients]
    untuned, tuned = (
        np.array([[getattr(pair, name) for pair in row] for row in table], dtype=np.float64)
        for name in ("untuned", "tuned")
    )
    return Gain(clients, untuned, tuned)


def gain_table(run: Run, weights: str, epochs: int, clients: tuple[int, ...]) -> dict[str, Any]:
    """Tell a gain as plain data, for scripts and the terminal."""
    found = gain_of(run, weights, epochs, clients)
    chance, own = found.chance, found.tuned.diagonal()
    return {
        "run": str(run.path),
        "algorithm": asked(run, "algorithm", "name"),
        "weights": weights,
        "epochs": epochs,
        "clients": list(clients),
        "tuned": found.tuned.tolist(),
        "untuned": found.untuned.tolist(),
        "per_client": {
            client: {
                "own_untuned": float(found.untuned[i, i]),
                "own": float(own[i]),
                "others": float(found.others[i]),
                "gain": float(found.of_clients[i]),
            }
            for i, client in enumerate(clients)
        },
        "gain": float(found.of_clients.mean()),
        "p": chance.p,
        "ways": chance.ways,
        "all_ways": chance.all,
    }
