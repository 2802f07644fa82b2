"""Algorithms that do what none should, and some that a user might write."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from fedtailor.algorithms._replies import Forms, Sent
from fedtailor.algorithms.fedavg import FedAvg, Global
from fedtailor.core.errors import UserError
from fedtailor.core.stopwatch import Stopwatch
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Log,
    Message,
    Metric,
    Reply,
    Result,
    Server,
    Setting,
)
from fedtailor.networks.network import Network, network_of
from fedtailor.training.evaluate import evaluate


def burn(seconds: float) -> None:
    """Keep this thread's CPU busy."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@dataclass(frozen=True)
class Busy(FedAvg):
    """FedAvg whose both sides think for long."""

    client_s: float = 0.0
    configure_s: float = 0.0
    aggregate_s: float = 0.0

    def configure(
        self, server: Server, state: Global, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        burn(self.configure_s)
        return super().configure(server, state, cohort)

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        burn(self.client_s)
        return super().train(client, own, msg)

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        burn(self.aggregate_s)
        return super().aggregate(server, state, results)


@dataclass(frozen=True)
class Parts(FedAvg):
    """FedAvg that tells training from thinking, which it does twice."""

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        watch = Stopwatch(client.meter)
        with watch.part("thinking"):
            burn(0.01)
        with watch.part("training"):
            own, reply = super().train(client, own, msg)
        with watch.part("thinking"):
            client.meter.macs += 10.0
        return own, replace(reply, log=replace(reply.log, times=watch.times()))


@dataclass(frozen=True)
class Mine(FedAvg):
    """FedAvg that also reports its accuracy, as declared."""

    boost: float = 1.0

    def sends(self) -> Forms:
        (weights,) = super().sends()["trained"]
        return {"trained": (weights, Sent("score", "float", "its accuracy"))}

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        own, reply = super().train(client, own, msg)
        return own, Reply(Message(reply.message.tensors, {"score": self.boost}), reply.log)


@dataclass(frozen=True)
class Leaks(FedAvg):
    """Sends its label counts, which it does not declare."""

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        own, reply = super().train(client, own, msg)
        labels = client.train.labels[client.train.index].bincount()
        return own, Reply(Message(reply.message.tensors, {"labels": labels.tolist()}), reply.log)


@dataclass(frozen=True)
class Picky(FedAvg):
    """Takes no model without a choice."""

    def check(self, setting: Setting) -> None:
        if not setting.space.choices:
            raise UserError("space.name: there is nothing to choose")


@dataclass(frozen=True)
class Writes(FedAvg):
    """Writes into what the server sent."""

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        next(iter(msg.tensors.values())).zero_()
        return super().train(client, own, msg)


@dataclass(frozen=True)
class Fails(FedAvg):
    """Client 1 cannot train."""

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        if client.info.id == 1:
            raise ValueError("this client has a broken disk")
        return super().train(client, own, msg)


@dataclass(frozen=True)
class Dies(FedAvg):
    """Client 1 takes its whole process with it."""

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        if client.info.id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(client, own, msg)


@dataclass(frozen=True)
class Exits(FedAvg):
    """Client 1 calls it a day."""

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        if client.info.id == 1:
            sys.exit(0)
        return super().train(client, own, msg)


@dataclass(frozen=True)
class Misnames(FedAvg):
    """Does not call its first model untuned."""

    def deploy(self, client: Client, own: None, msg: Message) -> Iterator[tuple[str, Network]]:
        for _, model in super().deploy(client, own, msg):
            yield "mine", model


@dataclass(frozen=True)
class Tells(FedAvg):
    """Sends a tuple along with the weights, and logs what arrives."""

    def configure(
        self, server: Server, state: Global, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        return {info.id: Message(state.weights, {"arch": (1, 2)}) for info in cohort}

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        own, reply = super().train(client, own, msg)
        is_list = Metric("train", "is_list", isinstance(msg.info["arch"], list))
        return own, Reply(reply.message, Log((is_list,)))


@dataclass(frozen=True)
class Lazy(FedAvg):
    """Does not look at what clients send."""

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        return state


@dataclass(frozen=True)
class Slow(FedAvg):
    """Every client takes its time."""

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        time.sleep(30)
        return super().train(client, own, msg)


@dataclass(frozen=True)
class Draws(FedAvg):
    """Draws from torch's global generator, as dropout does."""

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        own, reply = super().train(client, own, msg)
        noisy = {n: t + 1e-3 * torch.randn_like(t) for n, t in reply.message.tensors.items()}
        return own, Reply(Message(noisy), reply.log)


@dataclass(frozen=True)
class Untunable(FedAvg):
    """Client 1 cannot tune for long."""

    def tune(
        self, client: Client, network: Network, only: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[str, Network]]:
        if client.info.id == 1 and self.finetune_epochs > 1:
            raise ValueError("this client has a broken fan")
        return super().tune(client, network, only)


@dataclass(frozen=True)
class Judges(FedAvg):
    """The server tests every average on its own images, and keeps the better one."""

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        new = super().aggregate(server, state, results)
        return max(state, new, key=lambda one: judged(server, one))

    def observe(self, server: Server, state: Global) -> dict[int, tuple[Metric, ...]]:
        return {0: (Metric("server", "judged", judged(server, state)),)}


def judged(server: Server, state: Global) -> float:
    """Return a model's accuracy on the server's own images."""
    assert server.public is not None
    setting = server.setting
    network = network_of(setting.space, setting.arch, setting.task, state.weights)
    return evaluate(network, server.public)["accuracy"]
