"""Processes that add up gradients: each computes some parts of a batch, all get the same sum."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from fedtailor.core import channel
from fedtailor.core.processes import Work, shared
from fedtailor.core.types import Json, Tensors
from fedtailor.pretrain.team import Worker, team


@contextmanager
def lead(
    follow: Work, head: dict[str, Json], tensors: Tensors, parts: int, size: int
) -> Iterator["Leader"]:
    """Start the processes that compute other parts of every batch than this one does.

    Args:
        follow: what the others do; they are told `head` and their share, and given `tensors`.
        head: JSON.
        tensors: in shared memory.
        parts: of a batch.
        size: processes, this one included; one: it computes all parts.
    """
    heads = [head | {"share": [place, parts, size]} for place in range(1, size)]
    with team(follow, heads, tensors) as others:
        yield Leader(others, range(0, parts, size))


class Leader:
    """The process that computes part 0 of every batch, and adds up."""

    def __init__(self, others: Sequence[Worker], parts: range) -> None:
        self._others, self.parts = others, parts

    def total(self, own: dict[int, Tensor]) -> Tensor:
        """Add up all parts' gradients, in the order of the parts, and tell the others the sum."""
        found = dict(own)
        for worker in self._others:
            found |= {int(part): g.to(own[0].device) for part, g in worker.receive()[1].items()}
        total = found[0]
        for part in range(1, len(found)):
            total = total + found[part]
        if self._others:
            with shared({"total": total}) as memory:
                for worker in self._others:
                    worker.send({}, memory)
        return total


class Follower:
    """What a process that is not the leader has of the team."""

    def __init__(self, leader: socket.socket, share: Sequence[int], device: str) -> None:
        self._leader, self._device, self.parts = leader, device, range(*share)

    def total(self, own: dict[int, Tensor]) -> Tensor:
        """Hand in the gradients and wait for the sum of all."""
        with shared({str(part): gradient for part, gradient in own.items()}) as memory:
            channel.send(self._leader, {}, memory)
        return channel.receive(self._leader)[1]["total"].to(self._device)
