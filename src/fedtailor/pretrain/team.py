"""Processes that add up gradients: each computes some parts of a batch, all get the same sum."""

import os
import socket
from types import TracebackType

from torch import Tensor

from fedtailor.engines import channel
from fedtailor.pretrain.processes import Work, Worker
from fedtailor.types import Json, Tensors


class Leader:
    """The process that computes part 0 of every batch, and starts the others.

    Args:
        follow: what the others do; they are told `head` and their share, and given `tensors`.
        head: JSON.
        tensors: in shared memory.
        parts: of a batch.
        size: processes, this one included; one: it computes all parts.
    """

    def __init__(self, follow: Work, head: Json, tensors: Tensors, parts: int, size: int) -> None:
        self.parts = range(0, parts, size)
        self._workers: list[Worker] = []
        if size == 1:
            return
        shared = channel.share(tensors)
        try:
            for place in range(1, size):
                share = {"share": [place, parts, size]}
                self._workers.append(Worker(follow, head | share, shared))
        finally:
            os.close(shared[0])

    def __enter__(self) -> "Leader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.close()

    def total(self, own: dict[int, Tensor]) -> Tensor:
        """Add up all parts' gradients, in the order of the parts, and tell the others the sum."""
        found = dict(own)
        for worker in self._workers:
            found |= {int(part): g.to(own[0].device) for part, g in worker.receive()[1].items()}
        total = found[0]
        for part in range(1, len(found)):
            total = total + found[part]
        if self._workers:
            shared = channel.share({"total": total})
            for worker in self._workers:
                worker.send({}, shared)
            os.close(shared[0])
        return total


class Follower:
    """What a process that is not the leader has of the team."""

    def __init__(self, leader: socket.socket, head: Json, device: str) -> None:
        self._leader, self._device = leader, device
        self.parts = range(*head["share"])

    def total(self, own: dict[int, Tensor]) -> Tensor:
        """Hand in the gradients and wait for the sum of all."""
        shared = channel.share({str(part): gradient for part, gradient in own.items()})
        channel.send(self._leader, {}, shared)
        os.close(shared[0])
        return channel.receive(self._leader)[1]["total"].to(self._device)
