"""Steps that are done in this process."""

import json
from collections import deque

from fedtailor.core.processes import failure_of
from fedtailor.core.types import Failure, Message
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform


class InProcess:
    """Steps are done here, when they are collected: for debugging and the smallest machines."""

    def __init__(self) -> None:
        self._host: ClientHost | None = None
        self._waiting: deque[tuple[Ticket, Message]] = deque()

    def open(self, host: ClientHost) -> None:
        """Host all clients here."""
        self._host = host

    def submit(self, ticket: Ticket, message: Message) -> None:
        """Queue a step."""
        self._waiting.append((ticket, message))

    def collect(self, timeout: float | None = None) -> tuple[Ticket, Done | Failure] | None:
        """Do the next step; once begun it is not interrupted, whatever the timeout."""
        if not self._waiting or self._host is None:
            return None
        ticket, message = self._waiting.popleft()
        # A copy, as over a wire: whatever a client does to it, the server's own is safe.
        tensors = {name: tensor.detach().clone() for name, tensor in message.tensors.items()}
        received = Message(tensors, json.loads(json.dumps(message.info)))
        try:
            return ticket, perform(self._host, ticket, received)
        except (Exception, SystemExit) as error:  # a worker would end, this process must not
            return ticket, failure_of(error)

    def close(self) -> None:
        """Forget what was queued."""
        self._waiting.clear()
