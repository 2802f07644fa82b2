"""An engine that a user might write: in this process, and what was asked last arrives first."""

from dataclasses import dataclass

from fedtailor.core.types import Failure, Message
from fedtailor.engines._base import ClientHost, Done, Engine, Ticket
from fedtailor.engines._in_process import InProcess
from fedtailor.runs.config import EngineOptions


@dataclass(frozen=True)
class Options(EngineOptions):
    """It has a field that no other engine has."""

    most: int = 100  # steps


class LastFirst(Engine):
    """Delivers in reversed order."""

    options = Options

    def __init__(self, options: Options) -> None:
        self._most = options.most
        self._inner = InProcess()
        self._asked: list[tuple[Ticket, Message]] = []

    def open(self, host: ClientHost) -> None:
        self._inner.open(host)

    def submit(self, ticket: Ticket, message: Message) -> None:
        self._asked.append((ticket, message))
        if len(self._asked) > self._most:
            raise ValueError("too many steps")

    def collect(self, timeout: float | None = None) -> tuple[Ticket, Done | Failure] | None:
        if self._asked:
            self._inner.submit(*self._asked.pop())
        return self._inner.collect(timeout)

    def close(self) -> None:
        self._inner.close()


class Half(Engine):
    """Is none: it delivers nothing."""

    def __init__(self, options: EngineOptions) -> None:
        del options


class Foreign:
    """Has all that an engine has, but says nothing of its options."""

    open = submit = collect = close = print
