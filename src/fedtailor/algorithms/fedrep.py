"""FedRep: a shared representation, and for every client a classifier of its own.

Paper: Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning".
Differs from the paper:
- while the head trains, the body stands still altogether, batch-norm statistics included; they
  travel and are averaged with the body;
- the head is the last linear layer; a client never sampled starts from the first head.
At the end every client adapts its head (`finetune_epochs`, 10 as in the paper); the body stays.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import nn

from fedtailor.algorithms._base import Algorithm, Sent, mean_of, to_all
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
class Body:
    """The shared representation: all weights but the head's."""

    weights: Tensors


@dataclass(frozen=True)
class Head:
    """A client's own classifier."""

    weights: Tensors


@dataclass(frozen=True)
class FedRep(Algorithm[Body, Head]):
    """Clients train their head, then the shared body; the server averages bodies."""

    sends: ClassVar[tuple[Sent, ...]] = (
        Sent("*", "tensor", "the body's weights after local training; the head stays"),
    )

    head_epochs: Annotated[int, Ge(0)] = 10  # before the `epochs` of the body
    finetune_epochs: Annotated[int, Ge(0)] = 10  # of the head

    def server_init(self, server: Server) -> Body:
        """Start from the first weights."""
        return Body(learn.pick(initial_weights(server.setting), learn.is_body))

    def client_init(self, client: Client) -> Head:
        """Start from the head that all start from."""
        return Head(learn.pick(initial_weights(client.setting), learn.is_head))

    def configure(
        self, server: Server, state: Body, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """Send the body to all."""
        return to_all(state.weights, cohort)

    def train(self, client: Client, own: Head, msg: Message) -> tuple[Head, Reply]:
        """Train the head on the body as received, then the body under that head."""
        model = learn.model_of(client.setting, msg.tensors | own.weights, client.device)
        lr = self.rate(client.round, client.setting.rounds)
        learn.train(
            client, model, self, lr=lr, epochs=self.head_epochs, only=learn.is_head, purpose="head"
        )
        loss = learn.train(client, model, self, lr=lr, only=learn.is_body, purpose="body")
        weights = learn.weights_of(model)
        reply = Reply(
            Message(learn.pick(weights, learn.is_body)), Log((Metric("train", "loss", loss),))
        )
        return Head(learn.pick(weights, learn.is_head)), reply

    def aggregate(self, server: Server, state: Body, results: Iterable[Result]) -> Body:
        """Average the bodies, each client by its number of examples."""
        return Body(mean_of(state.weights, results, weighted=True))

    def deploy(self, client: Client, own: Head, msg: Message) -> Iterator[tuple[str, nn.Module]]:
        """Use the body under the client's head, then with the head adapted to it."""
        weights = msg.tensors | own.weights
        return self.tune(
            client, learn.model_of(client.setting, weights, client.device), learn.is_head
        )
