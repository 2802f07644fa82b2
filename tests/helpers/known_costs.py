"""Algorithms whose clients need, send and compute what is known beforehand."""

from dataclasses import dataclass
from pathlib import Path

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core.types import Client, Message, Reply, Setting


@dataclass(frozen=True)
class Equipped(FedAvg):
    """FedAvg whose clients need a file of the method's own."""

    table: str = ""

    def needs(self, setting: Setting) -> dict[str, Path]:
        return super().needs(setting) | {"algorithm.table": Path(self.table)}


@dataclass(frozen=True)
class Charges(FedAvg):
    """Trains nothing; charges for a round, for each batch, and for each validation image."""

    fixed: float = 0.0
    per_batch: float = 0.0
    per_val_image: float = 0.0

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        client.meter.macs += self.fixed + self.per_batch * len(client.train) / self.batch
        client.meter.macs += self.per_val_image * len(client.val)
        return None, Reply(Message({name: w.clone() for name, w in msg.tensors.items()}))
