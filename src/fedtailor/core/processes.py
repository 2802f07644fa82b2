"""Processes that work for this one: one torch thread each, gone with their parent.

They are plain subprocesses that speak over a socket: JSON, and tensors in shared memory.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import torch

from fedtailor.core import channel, codec
from fedtailor.core.errors import UserError
from fedtailor.core.types import Failure, Json, Tensors

# What a process does: given a socket to its parent, and what it was told first.
Work: TypeAlias = Callable[[socket.socket, Json, Tensors], None]
Shared: TypeAlias = tuple[int, Json]  # a descriptor, and where each tensor lies

# Settings of glibc's allocator. By default the activations of every step are given back to the
# system and asked for again: a tenth of the time of a network of some size.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 29), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}


@contextmanager
def shared(tensors: Tensors) -> Iterator[Shared]:
    """Hold tensors in shared memory for as long as they are being sent; receivers keep it."""
    memory = channel.share(tensors)
    try:
        yield memory
    finally:
        os.close(memory[0])


class Process:
    """A process that does some work; it imports what it needs before it is told anything.

    Args:
        work: a function of a module.
    """

    def __init__(self, work: Work) -> None:
        self.talk, theirs = socket.socketpair()
        end, self._lifeline = os.pipe()
        words = [f"{work.__module__}:{work.__qualname__}", str(theirs.fileno()), str(end)]
        path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedtailor.core.processes", *words],
                pass_fds=(theirs.fileno(), end),
                env=KEEP_MEMORY | os.environ | path,
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the parent alone
            )
        except BaseException:
            self._hang_up()
            raise
        finally:
            theirs.close()
            os.close(end)

    def send(self, head: Json, tensors: Shared | None = None) -> None:
        """Tell it something; whether it is still there shows when its answer is read."""
        with suppress(ConnectionError):
            channel.send(self.talk, head, tensors)

    def receive(self) -> tuple[Json, Tensors]:
        """Wait for its answer; EOFError when it is gone."""
        try:
            return channel.receive(self.talk)
        except ConnectionError:
            raise EOFError("the process is gone") from None

    def cause_of_death(self) -> str:
        """Say by which signal or with which code a process that is gone ended."""
        with suppress(subprocess.TimeoutExpired):  # its own reason, not our kill
            self.process.wait(timeout=10)
        code = self.process.returncode
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._hang_up()
        self.process.kill()
        self.process.wait()

    def _hang_up(self) -> None:
        if self.talk.fileno() >= 0:
            self.talk.close()
            os.close(self._lifeline)


def failure_of(error: BaseException) -> Failure:
    """Put an exception into one sentence, its traceback beside it."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    notes = getattr(error, "__notes__", ())
    reason += f" ({', '.join(notes)})" if notes else ""
    return Failure(reason, "".join(traceback.format_exception(error)))


def main(name: str, talk: int, lifeline: int) -> None:
    """Do the work of that name for the parent at the other end of the socket.

    What goes wrong is sent: `refusal`, a sentence for the user, or `failure`.
    """
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    module, _, function = name.partition(":")
    with socket.socket(fileno=talk) as parent, suppress(EOFError, ConnectionError):  # parent gone
        try:
            work: Work = getattr(importlib.import_module(module), function)
            work(parent, *channel.receive(parent))
        except (EOFError, ConnectionError):
            raise
        except UserError as error:
            channel.send(parent, {"refusal": str(error)})
        except Exception as error:
            channel.send(parent, {"failure": codec.pack(failure_of(error))[1]})


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: it returns when the parent is gone
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
