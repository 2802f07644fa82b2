"""Processes that share the work of pre-training: one torch thread each, gone with their parent.

They speak as the workers of an engine do: JSON, and tensors in shared memory.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

import torch

from fedtailor.core import channel
from fedtailor.core.errors import UserError
from fedtailor.core.types import Json, Tensors
from fedtailor.engines._worker import failure_of
from fedtailor.engines.local import KEEP_MEMORY

Work: TypeAlias = Callable[[socket.socket, Json, Tensors], None]
Shared: TypeAlias = tuple[int, Json]  # a descriptor, and where each tensor lies


@contextmanager
def shared(tensors: Tensors) -> Iterator[Shared]:
    """Hold tensors in shared memory for as long as they are being sent; receivers keep it."""
    memory = channel.share(tensors)
    try:
        yield memory
    finally:
        os.close(memory[0])


class Worker:
    """A process that does some work and answers what it is told.

    Args:
        work: a function of a module; it is given a socket, and what it is told first.
    """

    def __init__(self, work: Work) -> None:
        self.talk, theirs = socket.socketpair()
        end, self._lifeline = os.pipe()
        name = f"{work.__module__}:{work.__qualname__}"
        module = ["-P", "-m", "fedtailor.core.processes"]
        path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.process = subprocess.Popen(
            [sys.executable, *module, name, str(theirs.fileno()), str(end)],
            pass_fds=(theirs.fileno(), end),
            env=KEEP_MEMORY | os.environ | path,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the parent alone
        )
        theirs.close()
        os.close(end)

    def send(self, head: Json, tensors: Shared | None = None) -> None:
        """Tell it something; whether it is still there shows when it is asked."""
        with suppress(ConnectionError):
            channel.send(self.talk, head, tensors)

    def receive(self) -> tuple[Json, Tensors]:
        """Wait for its answer, or say in one sentence why there is none."""
        try:
            head, tensors = channel.receive(self.talk)
        except (EOFError, ConnectionError):
            raise UserError(
                f"pretrain: a worker process died ({self._reason()}); what was saved is used when"
                " the command is run again"
            ) from None
        if "refusal" in head:
            raise UserError(head["refusal"])
        if "failure" in head:
            print(head["details"], file=sys.stderr)
            raise UserError(f"pretrain: a worker process failed ({head['failure']})")
        return head, tensors

    def _reason(self) -> str:
        with suppress(subprocess.TimeoutExpired):  # its own reason, not our kill
            self.process.wait(timeout=10)
        code = self.process.returncode
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.talk.close()
        os.close(self._lifeline)
        self.process.kill()
        self.process.wait()


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


def main(name: str, talk: int, lifeline: int) -> None:
    """Do the work of that name for the parent at the other end of the socket."""
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    module, _, function = name.partition(":")
    with socket.socket(fileno=talk) as parent, suppress(EOFError, ConnectionError):  # parent gone
        try:
            getattr(importlib.import_module(module), function)(parent, *channel.receive(parent))
        except (EOFError, ConnectionError):
            raise
        except UserError as error:
            channel.send(parent, {"refusal": str(error)})
        except Exception as error:
            failure = failure_of(error)
            channel.send(parent, {"failure": failure.reason, "details": failure.details})


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: it returns when the parent is gone
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
