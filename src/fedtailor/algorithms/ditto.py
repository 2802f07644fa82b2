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
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import nn

from fedtailor.algorithms._base import Algorithm, Sent, mean_of, to_all
from fedtailor.algorithms.fedavg import Global
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Log,
    Message,
    Metric,
    Reply,
    Result,
    Server,
    Tensors,
)
from fedtailor.networks.initial import initial_weights
from fedtailor.training import learn


@dataclass(frozen=True)
class Personal:
    """A client's own weights; none before its first round."""

    weights: Tensors | None = None


@dataclass(frozen=True)
class Ditto(Algorithm[Global, Personal]):
    """Clients train the global model and, beside it, their own."""

    sends: ClassVar[tuple[Sent, ...]] = (
        Sent("*", "tensor", "the global model's weights after local training"),
    )

    strength: Annotated[float, Ge(0)] = 1.0  # the paper's lambda: pull towards the global model
    personal_epochs: Annotated[int, Ge(0)] | None = None  # None: as many as `epochs`
    weighted: bool = False  # average by examples; the authors' code averages plainly

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
        lr = self.rate(client.round, client.setting.rounds)
        model = learn.model_of(client.setting, msg.tensors, client.device)
        learn.train(client, model, self, lr=lr, purpose="global")
        trained = learn.weights_of(model)
        start = msg.tensors if own.weights is None else own.weights
        model = learn.model_of(client.setting, start, client.device)
        loss = learn.train(
            client,
            model,
            self,
            lr=lr,
            epochs=self.personal_epochs,
            pull=(self.strength, msg.tensors),
            purpose="personal",
        )
        log = Log((Metric("train", "loss", loss),))
        return Personal(learn.weights_of(model)), Reply(Message(trained), log)

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        """Average the global models."""
        return Global(mean_of(state.weights, results, self.weighted))

    def deploy(
        self, client: Client, own: Personal, msg: Message
    ) -> Iterator[tuple[str, nn.Module]]:
        """Use the personal model."""
        weights = msg.tensors if own.weights is None else own.weights
        return self.tune(client, learn.model_of(client.setting, weights, client.device))
