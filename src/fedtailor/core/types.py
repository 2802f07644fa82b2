"""The nouns of the package: what is said between server, client, engine and run folder."""

import json
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from fedtailor.core.records import (
    NEVER,
    Arch,
    Budget,
    ClientInfo,
    Json,
    Log,
    Metric,
    Offspring,
    Spent,
    UsedArch,
)
from fedtailor.core.rng import rng_for
from fedtailor.core.space import SearchSpace, Task

__all__ = [
    "NEVER", "Augment", "Batch", "Budget", "Client", "ClientInfo", "Examples", "Failure", "Json",
    "Log", "Message", "Meter", "Metric", "Offspring", "Reply", "Result", "Server", "Setting",
    "Spent", "Tensors", "UsedArch",
]  # fmt: skip

Tensors: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """What server and clients both know."""

    task: Task
    space: SearchSpace
    rounds: int
    seed: int
    arch: Arch = ()  # what an algorithm that does not search trains
    init: str | None = None  # a file of weights to start from


@dataclass(frozen=True)
class Augment:
    """Random changes to training images, drawn anew for every batch."""

    crop: int = 0  # pixels of zero padding before a random crop
    flip: bool = False
    cutout: int = 0  # side of the square that is blanked


@dataclass(frozen=True)
class Examples:
    """A client's rows of a data set whose arrays all clients share."""

    images: Tensor  # (N, C, H, W), uint8 or float32
    labels: Tensor  # (N,), int64
    index: Tensor  # (n,), int64
    mean: tuple[float, ...]  # per channel, on the scale where uint8 255 is 1
    std: tuple[float, ...]
    augment: Augment = Augment()

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class Batch:
    """Some images and their labels, ready to be learned from."""

    images: Tensor  # (n, C, H, W), normalised, on the client's device
    labels: Tensor  # (n,)
    epoch: int = 1  # of the pass over the data that it belongs to, counted from 1

    def __len__(self) -> int:
        return len(self.labels)


class Meter:
    """Counts the multiply-adds that a client or the server spends, for the modelled clock."""

    def __init__(self) -> None:
        self.macs = 0.0


@dataclass(frozen=True)
class Client:
    """Everything a client's side of an algorithm may look at."""

    setting: Setting
    info: ClientInfo
    round: int
    train: Examples
    val: Examples
    test: Examples
    device: str = "cpu"
    meter: Meter = field(default_factory=Meter)
    spare: int = 0  # cores that it may use beside its own

    def rng(self, purpose: str) -> torch.Generator:
        """Return the generator of (seed, round, client, purpose)."""
        return rng_for(self.setting.seed, self.round, self.info.id, purpose)


@dataclass(frozen=True)
class Server:
    """Everything the server's side of an algorithm may look at."""

    setting: Setting
    round: int
    clients: tuple[ClientInfo, ...]
    public: Examples | None = None  # images that are its own and no client's: data.public
    device: str = "cpu"
    meter: Meter = field(default_factory=Meter)  # of all but merging, which is charged by size

    def rng(self, purpose: str) -> torch.Generator:
        """Return the generator of (seed, round, server, purpose)."""
        return rng_for(self.setting.seed, self.round, "server", purpose)


@dataclass(frozen=True, eq=False)
class Message:
    """All that ever crosses the wire. Its tensors are read-only: writing to them raises."""

    tensors: Tensors = field(default_factory=dict)
    info: dict[str, Json] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of content: the tensors and, where there is any, the info as JSON."""
        tensors = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return tensors + (len(json.dumps(self.info)) if self.info else 0)


@dataclass(frozen=True)
class Reply:
    """A client's answer: `message` goes to the server, `log` does not."""

    message: Message = field(default_factory=Message)
    log: Log = field(default_factory=Log)


@dataclass(frozen=True)
class Result:
    """What the server learns of one client's round."""

    client: ClientInfo
    sent: dict[str, Json]  # the info of the server's own message
    message: Message
    seconds: float  # round time, modelled or measured
    version: int  # the round whose server state the client trained from


@dataclass(frozen=True)
class Failure:
    """A step that did not."""

    reason: str  # one sentence
    details: str = ""  # the traceback, where there is one
