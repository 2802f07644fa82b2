"""This machine: worker processes, or one process for debugging."""

from dataclasses import replace

from fedtailor.core.compute import cores
from fedtailor.core.types import Failure, Message
from fedtailor.engines._base import ClientHost, Done, Engine, Ticket
from fedtailor.engines._in_process import InProcess
from fedtailor.engines._worker_pool import WorkerPool
from fedtailor.runs.config import EngineOptions


class Local(Engine):
    """A simulation on this machine; without workers, in this process."""

    def __init__(self, options: EngineOptions) -> None:
        """Start the workers; they import what they need while the data is being read."""
        self._lanes = max(1, options.workers)
        self._place = WorkerPool(options.workers) if options.workers else InProcess()

    def open(self, host: ClientHost) -> None:
        """Say what clients do, and with what."""
        spare = max(0, cores() - self._lanes) // self._lanes
        self._place.open(replace(host, spare=spare))

    def submit(self, ticket: Ticket, message: Message) -> None:
        """Ask for a step."""
        self._place.submit(ticket, message)

    def collect(self, timeout: float | None = None) -> tuple[Ticket, Done | Failure] | None:
        """Wait for any step to end."""
        return self._place.collect(timeout)

    def close(self) -> None:
        """End everything that is under way."""
        self._place.close()
