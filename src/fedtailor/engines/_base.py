"""What an engine is: something that lets clients do steps, wherever they are."""

from dataclasses import dataclass
from typing import Literal, Protocol

from fedtailor.core.types import NEVER, Failure, Message, Reply


@dataclass(frozen=True)
class Ticket:
    """One step asked of one client.

    Attributes:
        step: "train" does a round; "evaluate" tests the first model that the client would deploy,
            "deploy" all of them.
        version: the round whose private state the client starts from.
    """

    step: Literal["train", "evaluate", "deploy"]
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


class Engine(Protocol):
    """Submit and collect, so that deadlines, stragglers and asynchronous rounds are possible."""

    def submit(self, ticket: Ticket, message: Message) -> None:
        """Ask for a step; returns at once."""
        ...

    def collect(self, timeout: float | None = None) -> tuple[Ticket, Done | Failure] | None:
        """Wait for any step to end; None when the time is out or nothing is under way."""
        ...

    def close(self) -> None:
        """End everything that is under way."""
        ...
