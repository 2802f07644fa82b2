"""FedBABU: the body is trained under a fixed random head; clients fine-tune the whole at the end.

Paper: Oh et al. 2022, "FedBABU: Toward Enhanced Representation for Federated Image
Classification".
Differs from the paper: batch norm keeps running statistics, averaged with the body, where the
authors' code uses the test batch's own (its accuracy then depends on the size of the test batch).
The head is one for all, drawn from the seed, and neither trained, decayed nor sent.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from fedtailor.algorithms._base import Algorithm, mean_of, to_all
from fedtailor.algorithms._replies import Forms, trained_tensors
from fedtailor.algorithms.fedrep import Body
from fedtailor.core.types import Client, ClientInfo, Log, Message, Reply, Result, Server
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network
from fedtailor.training import learn


@dataclass(frozen=True)
class FedBABU(Algorithm[Body, None]):
    """Clients train the body only; the server averages bodies."""

    weighted: bool = False  # average by examples; the authors' code averages plainly
    finetune_epochs: Annotated[int, Ge(0)] = 5  # of the whole model, head included

    def sends(self) -> Forms:
        """Declare what leaves a client."""
        return trained_tensors("the body's weights after local training; the head is fixed")

    def server_init(self, server: Server) -> Body:
        """Start from the first weights."""
        return Body(learn.pick(initial_weights(server.setting), learn.is_body))

    def client_init(self, client: Client) -> None:
        """Clients keep nothing: the head follows from the seed."""
        return

    def configure(
        self, server: Server, state: Body, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """Send the body to all."""
        return to_all(state.weights, cohort)

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        """Train the body under the fixed head."""
        network = self._network(client, msg)
        loss = learn.fit(client, network.only(learn.is_body), self)
        body = learn.pick(network.weights(), learn.is_body)
        return None, Reply(Message(body), Log.of(loss=loss))

    def aggregate(self, server: Server, state: Body, results: Iterable[Result]) -> Body:
        """Average the bodies."""
        return Body(mean_of(state.weights, results, self.weighted))

    def deploy(self, client: Client, own: None, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the body under the fixed head, then the whole fine-tuned."""
        return self.tune(client, self._network(client, msg))

    def _network(self, client: Client, msg: Message) -> Network:
        head = learn.pick(initial_weights(client.setting), learn.is_head)
        return learn.network(client, msg.tensors | head)
