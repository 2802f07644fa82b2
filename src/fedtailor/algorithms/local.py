"""Local training: every client alone, nothing is sent.

Paper: none, the control of every federated comparison.
Differs from the paper: nothing. All clients start from the same weights, so that they differ by
their data only, and train in the rounds in which they are sampled, so that the budget of rounds and
epochs is that of the federated methods. A client never sampled keeps the first weights.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedtailor.algorithms._base import Algorithm
from fedtailor.algorithms._replies import Forms
from fedtailor.core.types import Client, ClientInfo, Log, Message, Reply, Result, Server, Tensors
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network
from fedtailor.training import learn


@dataclass(frozen=True)
class Alone:
    """The server knows nothing."""


@dataclass(frozen=True)
class Own:
    """A client's own weights."""

    weights: Tensors


@dataclass(frozen=True)
class Local(Algorithm[Alone, Own]):
    """Every client trains its own network on its own data."""

    def sends(self) -> Forms:
        """Declare that nothing leaves a client."""
        return {"nothing": ()}

    def server_init(self, server: Server) -> Alone:
        """Start with nothing."""
        return Alone()

    def client_init(self, client: Client) -> Own:
        """Start from the weights that all start from."""
        return Own(initial_weights(client.setting))

    def configure(
        self, server: Server, state: Alone, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """Send nothing."""
        return {info.id: Message() for info in cohort}

    def train(self, client: Client, own: Own, msg: Message) -> tuple[Own, Reply]:
        """Train the client's own network."""
        network = learn.network(client, own.weights)
        loss = learn.fit(client, network, self)
        return Own(network.weights()), Reply(log=Log.of(loss=loss))

    def aggregate(self, server: Server, state: Alone, results: Iterable[Result]) -> Alone:
        """There is nothing to take in."""
        return state

    def deploy(self, client: Client, own: Own, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the client's own network."""
        return self.tune(client, learn.network(client, own.weights))
