"""The nouns of the package: what is said between server, client, engine and run folder."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from fedtailor.core.rng import rng_for

Arch: TypeAlias = tuple[int, ...]  # the option taken at each Choice; () for a fixed model
Tensors: TypeAlias = dict[str, Tensor]
Json: TypeAlias = Any  # None, bool, int, float, str, list or dict with string keys


@dataclass(frozen=True)
class Choice:
    """One decision of a search space."""

    name: str
    options: tuple[int | str, ...]


@dataclass(frozen=True)
class Token:
    """One of the sequence as which generators see an architecture: some genes, taken together.

    With a `depth` the token is there only where that gene is at least that option, else it is
    absent. No token writes such a gene: which of its tokens are absent says what it is.
    """

    name: str
    genes: tuple[int, ...]  # indices of choices
    stage: int = 0
    place: int = 0  # within its stage or cell
    after: tuple[int, ...] = ()  # indices of the tokens whose output it reads
    depth: tuple[int, int] | None = None  # gene and option


@dataclass(frozen=True)
class Task:
    """What a network must do: images of `shape` (channels, height, width) into `classes`."""

    shape: tuple[int, int, int]
    classes: int


class SearchSpace(ABC):
    """A family of networks; a fixed model is a space without choices.

    Parameter names are stable over architectures; the classifier's begin with "head.". Of a name
    that two architectures share, the smaller tensor is a window of the larger one: leading in the
    first two dimensions, centred in the others.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # name -> fields, beside "default"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The decisions, in the order of an Arch."""
        return ()

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The sequence as which generators see an architecture; by default a token per choice."""
        return tuple(
            Token(choice.name, (gene,), 0, gene, (gene - 1,) if gene else ())
            for gene, choice in enumerate(self.choices)
        )

    @abstractmethod
    def build(self, arch: Arch, task: Task) -> nn.Module:
        """Build the network of an architecture, its weights not yet of any meaning."""

    def smallest(self) -> Arch:
        """Return the cheapest architecture; options are listed from small to large."""
        return self.repair(tuple(0 for _ in self.choices))

    def middle(self) -> Arch:
        """Return an architecture of middling cost."""
        return self.repair(tuple((len(c.options) - 1) // 2 for c in self.choices))

    def largest(self) -> Arch:
        """Return the dearest architecture."""
        return self.repair(tuple(len(c.options) - 1 for c in self.choices))

    def cover(self) -> tuple[Arch, ...]:
        """Return architectures whose union is the supernet: option k everywhere, for every k."""
        most = max((len(c.options) for c in self.choices), default=1)
        every = (tuple(min(k, len(c.options) - 1) for c in self.choices) for k in range(most))
        return tuple(dict.fromkeys(self.repair(arch) for arch in every))

    def repair(self, arch: Arch) -> Arch:
        """Return the nearest legal architecture, in the one form that equal networks share.

        A legal architecture in that form is returned as it is.
        """
        return arch


@dataclass(frozen=True)
class Budget:
    """What a client's device can do."""

    memory_mb: float | None = None  # None: no limit
    speed: float = 1e10  # multiply-adds per second in training
    mbps: float = 100.0  # megabits per second, up and down alike


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
class ClientInfo:
    """What the server knows of a client: told at registration, before any round."""

    id: int
    examples: int  # training examples
    budget: Budget = Budget()


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


class Meter:
    """Counts the multiply-adds a client spends in a step, for the modelled clock."""

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

    def rng(self, purpose: str) -> torch.Generator:
        """Return the generator of (seed, round, client, purpose)."""
        return rng_for(self.setting.seed, self.round, self.info.id, purpose)


@dataclass(frozen=True)
class Server:
    """Everything the server's side of an algorithm may look at."""

    setting: Setting
    round: int
    clients: tuple[ClientInfo, ...]
    public: Examples | None = None  # data the server owns
    device: str = "cpu"

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
class Metric:
    """One measured number of one client: split is train, val, test or server (its own view)."""

    split: str
    name: str
    value: float


@dataclass(frozen=True)
class Found:
    """An architecture a client used or tried."""

    arch: Arch
    score: float | None = None  # what it was judged by: validation accuracy, unless told otherwise
    cost: dict[str, float] = field(default_factory=dict)
    role: str = "trained"  # in a round; or "deployed"


@dataclass(frozen=True)
class Log:
    """What a step measured; it stays with the client, and in simulation goes to the run folder."""

    metrics: tuple[Metric, ...] = ()
    architectures: tuple[Found, ...] = ()


@dataclass(frozen=True)
class Reply:
    """A client's answer: `message` goes to the server, `log` does not."""

    message: Message = field(default_factory=Message)
    log: Log = Log()


@dataclass(frozen=True)
class Result:
    """What the server learns of one client's round."""

    client: ClientInfo
    sent: dict[str, Json]  # the info of the server's own message
    message: Message
    seconds: float  # round time, modelled or measured
    version: int  # the round whose server state the client trained from
