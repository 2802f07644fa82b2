"""FedAvg: one model for all, the sample-weighted mean of what clients trained.

Paper: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
Data".
Differs from the paper: batch-norm statistics are averaged with the weights (the paper has none),
and every client fine-tunes the final model on its own data before it is tested, as PerFedRLNAS and
SPIDER do with it; the untuned value is reported beside it.
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
class Global:
    """The weights that all clients share."""

    weights: Tensors


@dataclass(frozen=True)
class FedAvg(Algorithm[Global, None]):
    """Clients train the global model; the server averages."""

    finetune_epochs: Annotated[int, Ge(0)] = 10

    def sends(self) -> Forms:
        """Declare what leaves a client."""
        return trained_tensors("the model's weights after local training")

    def server_init(self, server: Server) -> Global:
        """Start from the first weights."""
        return Global(initial_weights(server.setting))

    def client_init(self, client: Client) -> None:
        """Clients keep nothing."""
        return

    def configure(
        self, server: Server, state: Global, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """Send the global model to all."""
        return to_all(state.weights, cohort)

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        """Train the global model on the client's data."""
        network = learn.network(client, msg.tensors)
        loss = learn.fit(client, network, self)
        return None, Reply(Message(network.weights()), Log.of(loss=loss))

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        """Average what came back, each client by its number of examples."""
        return Global(mean_of(state.weights, results, weighted=True))

    def deploy(self, client: Client, own: None, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the global model, then the same fine-tuned."""
        return self.tune(client, learn.network(client, msg.tensors))
