"""FedAvg: one model for all, the sample-weighted mean of what clients trained.

Paper: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
Data".
Differs from the paper: batch-norm statistics are averaged with the weights (the paper has none),
and every client fine-tunes the final model on its own data before it is tested, as PerFedRLNAS and
SPIDER do with it; the untuned value is reported beside it.
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
class Global:
    """The weights that all clients share."""

    weights: Tensors


@dataclass(frozen=True)
class FedAvg(Algorithm[Global, None]):
    """Clients train the global model; the server averages."""

    sends: ClassVar[tuple[Sent, ...]] = (
        Sent("*", "tensor", "the model's weights after local training"),
    )

    finetune_epochs: Annotated[int, Ge(0)] = 10

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
        model = learn.model_of(client.setting, msg.tensors, client.device)
        loss = learn.train(client, model, self, lr=self.rate(client.round, client.setting.rounds))
        log = Log((Metric("train", "loss", loss),))
        return None, Reply(Message(learn.weights_of(model)), log)

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        """Average what came back, each client by its number of examples."""
        return Global(mean_of(state.weights, results, weighted=True))

    def deploy(self, client: Client, own: None, msg: Message) -> Iterator[tuple[str, nn.Module]]:
        """Use the global model, then the same fine-tuned."""
        return self.tune(client, learn.model_of(client.setting, msg.tensors, client.device))
