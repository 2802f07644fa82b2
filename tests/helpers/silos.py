"""Silos of SPIDER on the way: what they have, and what they are sent."""

from typing import Any

import torch

from fedtailor.algorithms.spider import Private
from fedtailor.core.space import Arch
from fedtailor.core.types import Client, Message, Tensors
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import shapes
from fedtailor.training import learn
from tests.helpers.few_edges import BOTH, SEP, SKIP, FewEdges

PLAIN: dict[str, Any] = {"lr": 0.05, "schedule": "constant", "batch": 20}
OPEN = FewEdges().largest()
HALF = (SEP, *OPEN[1:14], SKIP, *OPEN[15:])  # one edge of each cell is decided
DECIDED = tuple(SEP if gene == BOTH else gene for gene in OPEN)


def received(client: Client, shift: float = 0.0) -> Message:
    """Return a supernet, away from where everyone begins."""
    rng = torch.Generator().manual_seed(7)
    first = initial_supernet(client.setting)
    return Message({n: w + shift * torch.randn(w.shape, generator=rng) for n, w in first.items()})


def begun(client: Client, arch: Arch, rounds: int = 1, shift: float = 0.0) -> Private:
    """Return a silo that has a network of its own, with statistics."""
    weights = received(client, shift).tensors
    wanted = shapes(client.setting.space, arch, client.setting.task)
    network = learn.network(client, {name: weights[name] for name in wanted}, arch)
    learn.recalibrate(network, client.train)
    return Private(arch, network.weights(), rounds)


def equal(one: Tensors, other: Tensors) -> bool:
    """Tell whether weights have the same names and the same bits."""
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
