"""Training a supernet on a client: some architectures to a batch, one optimizer for all of them."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import torch

from fedtailor.core.space import Arch
from fedtailor.core.types import Batch, Client
from fedtailor.data.batches import batch_count
from fedtailor.networks.network import Network
from fedtailor.networks.store import Store
from fedtailor.training.learn import EpochMean, Recipe, batches, rate_of, refuse_divergence
from fedtailor.training.optimise import SupernetOptimizer

Scheme: TypeAlias = Callable[[torch.Generator], Sequence[Arch]]  # draws a batch's architectures
ENDLESS = 1 << 62


class SupernetTrainer:
    """Trains a store on a client's training data.

    Momentum, step counts and the streams of batches and architectures last as long as the trainer.
    A method with a step of its own writes it with `batches`, `bind` and `move`.

    Args:
        client: whose training data it is.
        store: its weights are trained in place.
        recipe: how to train.
        lr: by default the recipe's of the client's round.
        purpose: keys the random draws.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        recipe: Recipe,
        *,
        lr: float | None = None,
        purpose: str = "train",
    ) -> None:
        self.times: dict[Arch, int] = {}  # batches that each architecture trained on
        self._client, self._store, self._recipe = client, store, recipe
        self._lr = rate_of(recipe, client) if lr is None else lr
        self._stream = batches(client, recipe.batch, epochs=ENDLESS, purpose=purpose)
        self._drawing = client.rng(f"{purpose}/archs")
        self._optimizer = SupernetOptimizer(
            store, recipe.optimizer, recipe.momentum, recipe.weight_decay, recipe.clip
        )

    def epochs(self, count: int, scheme: Scheme) -> float:
        """Train all that the scheme draws for a batch on its labels; return the last mean loss."""
        mean = EpochMean(self._store.device)
        for batch in self.batches(count):
            networks = self.bind(scheme(self._drawing))
            for network in networks:
                loss = network.loss(batch, self._recipe.label_smoothing)
                loss.backward()
                mean.add(loss, batch)
            self.move(networks)
        refuse_divergence(mean.value, self._store.weights)
        return mean.value

    def batches(self, epochs: int) -> Iterator[Batch]:
        """Go on with the client's batches, for some epochs."""
        each = batch_count(len(self._client.train), self._recipe.batch)
        return itertools.islice(self._stream, epochs * each)

    def bind(self, archs: Iterable[Arch]) -> list[Network]:
        """Return the networks of a batch; their parameters are windows of the store.

        They may share modules: each must have done its part before any is bound again.
        """
        found = []
        for arch in archs:
            module = self._store.bind(arch)
            self.times[arch] = self.times.get(arch, 0) + 1
            store, meter = self._store, self._client.meter
            found.append(Network(module, store.space, store.task, arch, store.device, meter))
        return found

    def move(self, networks: Sequence[Network]) -> None:
        """Move the store by the gradients of the networks, which are used up."""
        self._optimizer.step([network.module for network in networks], self._lr)
