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
from typing import Annotated

from annotated_types import Ge

from fedtailor.algorithms._base import Algorithm, mean_of, to_all
from fedtailor.algorithms._replies import Forms, trained_tensors
from fedtailor.core.types import Client, ClientInfo, Log, Message, Reply, Result, Server, Tensors
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network
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

    head_epochs: Annotated[int, Ge(0)] = 10  # before the `epochs` of the body
    finetune_epochs: Annotated[int, Ge(0)] = 10  # of the head

    def sends(self) -> Forms:
        """Declare what leaves a client."""
        return trained_tensors("the body's weights after local training; the head stays")

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
        network = learn.network(client, msg.tensors | own.weights)
        head, body = network.only(learn.is_head), network.only(learn.is_body)
        learn.fit(client, head, self, epochs=self.head_epochs, purpose="head")
        loss = learn.fit(client, body, self, purpose="body")
        weights = network.weights()
        reply = Reply(Message(learn.pick(weights, learn.is_body)), Log.of(loss=loss))
        return Head(learn.pick(weights, learn.is_head)), reply

    def aggregate(self, server: Server, state: Body, results: Iterable[Result]) -> Body:
        """Average the bodies, each client by its number of examples."""
        return Body(mean_of(state.weights, results, weighted=True))

    def deploy(self, client: Client, own: Head, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the body under the client's head, then with the head adapted to it."""
        network = learn.network(client, msg.tensors | own.weights)
        return self.tune(client, network, learn.is_head)
