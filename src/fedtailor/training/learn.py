"""What a method trains with: networks, batches drawn by key, and plain steps of PyTorch.

A method whose step is the usual one calls `fit`. One with a step of its own writes it down:

    network = learn.network(client, msg.tensors)
    optimizer = learn.optimizer(network, self, lr)
    for batch in learn.batches(client, self.batch, epochs=self.epochs, purpose="mine"):
        optimizer.zero_grad()
        network.loss(batch).backward()
        learn.move(network, optimizer, self.clip)

Batches follow from the client's key, multiply-adds are charged by the network, and what is not
finite is refused when its weights are asked for.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from fedtailor.core.compute import is_finite
from fedtailor.core.space import Arch
from fedtailor.core.types import Batch, Client, Examples, Tensors
from fedtailor.data.batches import batch as rows_to_batch
from fedtailor.data.batches import epoch
from fedtailor.networks import store_pool
from fedtailor.networks.network import (
    REMEDY,
    DivergedError,
    Network,
    is_body,
    is_head,
    network_of,
    pick,
)
from fedtailor.networks.store import Store
from fedtailor.training import eager
from fedtailor.training.embed import embed
from fedtailor.training.evaluate import evaluate, recalibrate
from fedtailor.training.schedule import cosine

__all__ = [
    "Batch",
    "DivergedError",
    "EpochMean",
    "Network",
    "Recipe",
    "batches",
    "embed",
    "evaluate",
    "fit",
    "is_body",
    "is_head",
    "joined",
    "move",
    "network",
    "optimizer",
    "pick",
    "pull",
    "rate_of",
    "recalibrate",
    "store_of",
]


@dataclass(frozen=True)
class Recipe:
    """How a client trains: fields that every algorithm shares."""

    epochs: Annotated[int, Ge(0)] = 1  # passes over the client's training data in a round
    batch: Annotated[int, Ge(1)] = 32  # images of a step
    optimizer: Literal["sgd", "adamw"] = "sgd"  # of local training; begun anew in every round
    lr: Annotated[float, Gt(0)] = 0.05  # the learning rate of the first round
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9  # sgd; adamw's betas are 0.9, 0.999
    weight_decay: Annotated[float, Ge(0)] = 0.0  # pulls all weights towards zero
    schedule: Literal["constant", "cosine", "step"] = (
        "constant"  # over rounds; step: /10 at 1/2, 3/4
    )
    clip: Annotated[float, Ge(0)] = 0.0  # largest norm of the gradient; 0: no limit
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # share of all classes alike

    def rate(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        done = (min(round, max(rounds, 1)) - 1) / max(rounds, 1)  # beyond the last: as in the last
        if self.schedule == "cosine":
            return self.lr * cosine(done)
        if self.schedule == "step":
            return self.lr * 0.1 ** ((done >= 0.5) + (done >= 0.75))
        return self.lr


def rate_of(recipe: Recipe, client: Client) -> float:
    """Return the learning rate of the client's round."""
    return recipe.rate(client.round, client.setting.rounds)


def network(client: Client, weights: Mapping[str, Tensor], arch: Arch | None = None) -> Network:
    """Return a network of the client's holding `weights`; by default of the setting's architecture.

    Its module was perhaps held by others before; two that are held at once are two.
    """
    setting = client.setting
    arch = setting.arch if arch is None else arch
    return network_of(setting.space, arch, setting.task, weights, client.device, client.meter)


def store_of(client: Client, weights: Tensors) -> AbstractContextManager[Store]:
    """Hand out a supernet of the client's holding `weights`, for the time of a `with` block.

    Its modules were perhaps used by others before; two that are held at once are two.
    """
    setting = client.setting
    return store_pool.store_of(setting.space, setting.task, weights, client.device)


def joined(client: Client) -> Client:
    """Return the client with its validation images among those it trains on, and none beside."""
    train, val = client.train, client.val
    both = torch.cat([train.index, val.index]).sort().values
    return replace(client, train=replace(train, index=both), val=replace(val, index=both[:0]))


def batches(
    client: Client, size: int, *, epochs: int = 1, purpose: str, examples: Examples | None = None
) -> Iterator[Batch]:
    """Yield all training examples, shuffled and augmented, as many times as there are epochs.

    Args:
        client: whose examples they are, and whose key they are drawn by.
        size: images to a batch; a last one alone joins the batch before it.
        epochs: passes over the data.
        purpose: names the draws; equal names in a round are equal batches.
        examples: others than the training examples.
    """
    rng, chosen = client.rng(purpose), client.train if examples is None else examples
    for number in range(1, epochs + 1):
        for rows in epoch(chosen, size, rng):
            yield Batch(*rows_to_batch(chosen, rows, rng, client.device), number)


def optimizer(network: Network, recipe: Recipe, lr: float) -> torch.optim.Optimizer:
    """Return an optimizer of what is live in a network, which is made ready to train."""
    network.train()
    live = list(network.live.values())
    if recipe.optimizer == "adamw":
        return eager.AdamW(live, lr=lr, weight_decay=recipe.weight_decay, foreach=True)
    return eager.SGD(
        live, lr=lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, foreach=True
    )


def pull(network: Network, anchor: Tensors, strength: float) -> None:
    """Add strength * (w - anchor) to the gradient of every live parameter, never to statistics."""
    for name, parameter in network.live.items():
        if parameter.grad is None:  # not reached by this batch's loss; the pull still acts
            parameter.grad = torch.zeros_like(parameter)
        there = anchor[name].to(parameter.device)
        parameter.grad.add_(parameter.detach() - there, alpha=strength)


def move(network: Network, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
    """Take the optimizer's step, the gradient cut to a norm where that is wanted."""
    if clip:
        nn.utils.clip_grad_norm_(list(network.live.values()), clip)
    optimizer.step()


def fit(
    client: Client,
    network: Network,
    recipe: Recipe,
    *,
    lr: float | None = None,
    epochs: int | None = None,
    purpose: str = "train",
) -> float:
    """Train on the client's training data; return the mean loss of the last epoch.

    Args:
        client: whose data and key it is.
        network: what of it is live is trained; `only` says what that is.
        recipe: how to train.
        lr: by default the recipe's of the client's round.
        epochs: by default the recipe's.
        purpose: keys the random draws.
    """
    steps = optimizer(network, recipe, rate_of(recipe, client) if lr is None else lr)
    count = recipe.epochs if epochs is None else epochs
    mean = EpochMean(client.device)
    for batch in batches(client, recipe.batch, epochs=count, purpose=purpose):
        loss = network.loss(batch, recipe.label_smoothing)
        steps.zero_grad()
        loss.backward()
        move(network, steps, recipe.clip)
        mean.add(loss, batch)
    refuse_divergence(mean.value, network.live)
    return mean.value


class EpochMean:
    """The mean loss of the last epoch; what the ones before had is checked and forgotten.

    It is summed where it is computed: reading a number waits for the device.
    """

    def __init__(self, device: str) -> None:
        self._epoch, self._images = 0, 0
        self._total = torch.zeros((), device=device)

    def add(self, loss: Tensor, batch: Batch) -> None:
        """Take a batch's mean loss in."""
        if batch.epoch != self._epoch:
            _refuse_infinite(self.value)
            self._epoch, self._images = batch.epoch, 0
            self._total = torch.zeros_like(self._total)
        self._total += loss.detach() * len(batch)
        self._images += len(batch)

    @property
    def value(self) -> float:
        """The mean over all images; 0 where there were none."""
        return self._total.item() / max(self._images, 1)


def refuse_divergence(loss: float, weights: Mapping[str, Tensor]) -> None:
    """Raise if a loss or any weight is not finite."""
    _refuse_infinite(loss)
    if not all(is_finite(weight) for weight in weights.values()):
        _refuse_infinite(math.nan)


def _refuse_infinite(loss: float) -> None:
    if not math.isfinite(loss):
        raise DivergedError(f"the weights or the loss became infinite: {REMEDY}")
