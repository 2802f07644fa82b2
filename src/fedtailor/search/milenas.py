"""MiLeNAS: weights of operations that learn from training and validation images at once.

He et al. 2020, "MiLeNAS: Efficient Neural Architecture Search via Mixed-Level Reformulation": first
order, one level. Every edge of a relaxed `darts` network is the average of its operations by the
softmax of its alphas, which descend the gradient of the training loss plus lambda times that of the
validation loss; the network's own weights learn from the training images alone.
"""

from collections.abc import Iterator
from typing import Self, cast

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedtailor.core.space import Arch
from fedtailor.core.types import Batch, Client
from fedtailor.networks.network import Network
from fedtailor.spaces._darts_cell import EDGES, Mixing, Operations
from fedtailor.spaces.darts import DARTS
from fedtailor.training import learn


def count(space: DARTS) -> int:
    """Return how many alphas there are: one for every operation of every edge, both cells'."""
    return sum(len(offered) for offered in space.offers)


def named(space: DARTS, alphas: Tensor) -> dict[str, dict[str, float]]:
    """Return alphas by the names of edges and operations."""
    parts = alphas.split([len(offered) for offered in space.offers])
    return {
        edge.name: dict(zip(offered, own.tolist(), strict=True))
        for edge, offered, own in zip(space.choices, space.offers, parts, strict=True)
    }


def mixing(space: DARTS, arch: Arch, alphas: Tensor) -> Mixing:
    """Return how much every live operation counts, in both kinds of cells.

    Those of an edge share it; `none`, where it is offered, takes a share and adds nothing.
    """
    found: list[list[Tensor]] = [[], []]
    for edge, (offered, live, own) in enumerate(_edges(space, arch, alphas)):
        sharing = [*live, *(place for place, name in enumerate(offered) if name == "none")]
        found[edge // len(EDGES)].append(own[sharing].softmax(0)[: len(live)])
    normal, reduction = (torch.cat(shares) for shares in found)
    return normal, reduction


class Mixed:
    """A network whose operations count by alphas, which learn as its weights do.

    Args:
        network: of a relaxed `darts`.
        alphas: with which it begins.
        val: batches of validation images, one for every batch of training images.
        rate: the length of a step of alphas.
        weight: lambda, how much the validation loss counts beside the training loss.
    """

    def __init__(
        self, network: Network, alphas: Tensor, val: Iterator[Batch], rate: float, weight: float
    ) -> None:
        self.network, self.alphas, self.val = network, alphas, val
        self.rate, self.weight = rate, weight
        self.space = cast(DARTS, network.space)

    @classmethod
    def of(
        cls,
        client: Client,
        network: Network,
        alphas: Tensor,
        recipe: learn.Recipe,
        rate: float,
        weight: float,
    ) -> Self:
        """Mix a client's network; its validation images are drawn by a key of their own."""
        enough = recipe.epochs * len(client.train)  # every pass has a batch at least
        val = learn.batches(
            client, recipe.batch, epochs=enough, purpose="alphas", examples=client.val
        )
        return cls(network, alphas.to(client.device), val, rate, weight)

    def learn(self, batch: Batch) -> None:
        """Take a step: alpha - rate * (gradient of the training loss + weight * of validation's).

        The network's weights and running statistics stay as they are.
        """
        point = self.alphas.detach().requires_grad_()
        slope = torch.zeros_like(point)
        for images, share in ((batch, 1.0), (next(self.val), self.weight)):
            self.network.charge(images.images)
            slope += share * torch.autograd.grad(self._untouched_loss(images, point), point)[0]
        self.alphas = (point - self.rate * slope).detach()

    def loss(self, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy of a batch, by which the weights learn."""
        logits = self.network(batch.images, mixing(self.space, self.network.arch, self.alphas))
        return F.cross_entropy(logits, batch.labels, label_smoothing=smoothing)

    def _untouched_loss(self, batch: Batch, alphas: Tensor) -> Tensor:
        module = self.network.module
        scratch = {name: buffer.clone() for name, buffer in module.named_buffers()}
        given = batch.images, mixing(self.space, self.network.arch, alphas)
        return F.cross_entropy(functional_call(module, scratch, (given,)), batch.labels)


def strongest(space: DARTS, arch: Arch, alphas: Tensor) -> Arch:
    """Return the architecture of each edge's largest alpha, of live operations but `none`."""
    found = []
    for _, live, own in _edges(space, arch, alphas):
        found.append(1 << max(live, key=own.tolist().__getitem__) if live else 0)
    return space.repair(tuple(found))


def _edges(
    space: DARTS, arch: Arch, alphas: Tensor
) -> Iterator[tuple[Operations, list[int], Tensor]]:
    """Yield each edge's offer, the places in it that are alive and not `none`, and its alphas."""
    parts = alphas.split([len(offered) for offered in space.offers])
    for offered, gene, own in zip(space.offers, arch, parts, strict=True):
        live = [place for place, name in enumerate(offered) if gene >> place & 1 and name != "none"]
        yield offered, live, own
