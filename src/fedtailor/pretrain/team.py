"""Processes that share the work of pre-training; what goes wrong in one is a sentence here."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.processes import Process, Work, shared
from fedtailor.core.types import Failure, Json, Tensors


class Worker(Process):
    """One of them: it answers what it is told."""

    def receive(self) -> tuple[Json, Tensors]:
        """Wait for its answer, or say in one sentence why there is none."""
        try:
            head, tensors = super().receive()
        except EOFError:
            raise UserError(
                f"pretrain: a worker process died ({self.cause_of_death()}); what was saved is used"
                " when the command is run again"
            ) from None
        if "refusal" in head:
            raise UserError(head["refusal"])
        if "failure" in head:
            failure = codec.unpack(Failure, {}, head["failure"])
            print(failure.details, file=sys.stderr)
            raise UserError(f"pretrain: a worker process failed ({failure.reason})")
        return head, tensors


@contextmanager
def team(work: Work, heads: Sequence[Json], tensors: Tensors) -> Iterator[list[Worker]]:
    """Start a worker for every head, tell it that and all of them the tensors; end them at last."""
    workers: list[Worker] = []
    try:
        for _ in heads:  # all are starting before the first is told: that waits for it
            workers.append(Worker(work))
        if workers:
            with shared(tensors) as memory:
                for worker, head in zip(workers, heads, strict=True):
                    worker.send(head, memory)
        yield workers
    finally:
        for worker in workers:
            worker.close()
