"""Ditto: a global model by averaging, and a personal one that is pulled towards it.

Paper: Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization".
Differs from the paper:
- the global model's epochs come first, then the personal model's, instead of alternating batch by
  batch; neither looks at the other within a round, so only the order of the batches differs;
- the pull acts on parameters only, before the optimizer's step; batch-norm statistics of the
  personal model are its own.
A client that was never sampled uses the global model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from fedtailor.algorithms._base import Algorithm, mean_of, to_all
from fedtailor.algorithms._replies import Forms, trained_tensors
from fedtailor.algorithms.fedavg import Global
from fedtailor.core.types import Client, ClientInfo, Log, Message, Reply, Result, Server, Tensors
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network
from fedtailor.training import learn


@dataclass(frozen=True)
class Personal:
    """A client's own weights; none before its first round."""

    weights: Tensors | None = None


@dataclass(frozen=True)
class Ditto(Algorithm[Global, Personal]):
    """Clients train the global model and, beside it, their own."""

    strength: Annotated[float, Ge(0)] = 1.0  # the paper's lambda: pull towards the global model
    personal_epochs: Annotated[int, Ge(0)] | None = None  # None: as many as `epochs`
    weighted: bool = False  # average by examples; the authors' code averages plainly

    def sends(self) -> Forms:
        """Declare what leaves a client."""
        return trained_tensors("the global model's weights after local training")

    def server_init(self, server: Server) -> Global:
        """Start from the first weights."""
        return Global(initial_weights(server.setting))

    def client_init(self, client: Client) -> Personal:
        """Start without a personal model: it begins as the global one."""
        return Personal()

    def configure(
        self, server: Server, state: Global, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """Send the global model to all."""
        return to_all(state.weights, cohort)

    def train(self, client: Client, own: Personal, msg: Message) -> tuple[Personal, Reply]:
        """Train the global model, then the personal one, pulled to what the server sent."""
        shared = learn.network(client, msg.tensors)
        learn.fit(client, shared, self, purpose="global")
        mine = learn.network(client, msg.tensors if own.weights is None else own.weights)
        loss = self._fit_personal(client, mine, msg.tensors)
        return Personal(mine.weights()), Reply(Message(shared.weights()), Log.of(loss=loss))

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        """Average the global models."""
        return Global(mean_of(state.weights, results, self.weighted))

    def deploy(self, client: Client, own: Personal, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the personal model."""
        weights = msg.tensors if own.weights is None else own.weights
        return self.tune(client, learn.network(client, weights))

    def _fit_personal(self, client: Client, mine: Network, anchor: Tensors) -> float:
        """Train the personal model, every step pulled to the global one; return the last loss."""
        steps = learn.optimizer(mine, self, learn.rate_of(self, client))
        anchor = {name: weight.to(client.device) for name, weight in anchor.items()}
        epochs = self.epochs if self.personal_epochs is None else self.personal_epochs
        mean = learn.EpochMean(client.device)
        for batch in learn.batches(client, self.batch, epochs=epochs, purpose="personal"):
            loss = mine.loss(batch, self.label_smoothing)
            steps.zero_grad()
            loss.backward()
            learn.pull(mine, anchor, self.strength)
            learn.move(mine, steps, self.clip)
            mean.add(loss, batch)
        return mean.value
