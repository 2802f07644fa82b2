"""What an engine is: something that lets clients do steps, wherever they are."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedtailor.algorithms._base import Algorithm
from fedtailor.core import registry
from fedtailor.core.types import NEVER, Client, ClientInfo, Failure, Message, Reply, Setting
from fedtailor.data.federation import Federation
from fedtailor.runs.config import EngineOptions


@dataclass(frozen=True)
class Ticket:
    """One step asked of one client.

    Attributes:
        step: "train" does a round; "evaluate" tests the first model that the client would deploy,
            "deploy" all of them; "tune" tests a network that the message brings, whoever's it is,
            before and after it is tuned.
        version: the round whose private state the client starts from.
    """

    step: Literal["train", "evaluate", "deploy", "tune"]
    client: int
    round: int
    version: int = NEVER


@dataclass(frozen=True)
class Done:
    """A step that succeeded."""

    reply: Reply
    macs: float  # multiply-adds spent
    seconds: float  # measured
    state_digest: str | None = None  # of the private state that the client now has of this round


@dataclass(frozen=True)
class ClientHost:
    """What hosts clients: what they do, their data where it is here, and their folders."""

    algorithm: Algorithm[Any, Any]
    setting: Setting
    data: Federation | None  # None: every client has its own, elsewhere
    clients: tuple[ClientInfo, ...]
    states: Path  # where private states are kept
    models: Path | None  # where deployed models go
    device: str = "cpu"
    spare: int = 0  # cores that each client may use beside its own
    last_round: int | None = None  # whose models are deployed; None: the setting's last

    @property
    def federation(self) -> Federation:
        """All clients' data, which must be here."""
        if self.data is None:
            raise RuntimeError("the clients' data are not here")
        return self.data

    def client(self, ticket: Ticket) -> Client:
        """Bring together what the client may look at in this step."""
        train, val, test = (
            self.federation.examples(ticket.client, split) for split in ("train", "val", "test")
        )
        info = self.clients[ticket.client]
        place = {"device": self.device, "spare": self.spare}
        return Client(self.setting, info, ticket.round, train, val, test, **place)


class Engine(ABC):
    """Submit and collect, so that deadlines, stragglers and asynchronous rounds are possible.

    An engine is one file, whose name is that of the engine. It is made by its options before any
    data is read: whatever takes time to start does so meanwhile. An engine with options of its own
    says so by `options`, a frozen dataclass below EngineOptions; the fields are keys of [engine].
    """

    options: ClassVar[type[EngineOptions]] = EngineOptions

    @abstractmethod
    def __init__(self, options: EngineOptions) -> None:
        """Start what takes time to start."""

    @abstractmethod
    def open(self, host: ClientHost) -> None:
        """Say what clients do, and with what; once, before the first step."""

    @abstractmethod
    def submit(self, ticket: Ticket, message: Message) -> None:
        """Ask for a step; returns at once."""

    @abstractmethod
    def collect(self, timeout: float | None = None) -> tuple[Ticket, Done | Failure] | None:
        """Wait for any step to end; None when the time is out or nothing is under way."""

    @abstractmethod
    def close(self) -> None:
        """End everything that is under way."""


def make_engine(options: EngineOptions) -> Engine:
    """Start the engine that a config names; then `open` it."""
    return registry.find("engine", options.name)(options)
