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
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import torch

from fedtailor import codec, registry
from fedtailor.engines import channel
from fedtailor.engines.local import KEEP_MEMORY
from fedtailor.errors import UserError
from fedtailor.types import Json, SearchSpace, Tensors

Work: TypeAlias = Callable[[socket.socket, Json, Tensors], None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: sums must not depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def describe(space: SearchSpace) -> Json:
    """Return a space as JSON: the name by which it is found, and its fields."""
    kind = type(space)
    name = kind.__module__.removeprefix("fedtailor.spaces.")
    if name == kind.__module__:  # a user's own file
        name = f"{sys.modules[name].__file__}:{kind.__qualname__}"
    return {"name": name, "fields": codec.pack(space)[1]}


def space_of(description: Json) -> SearchSpace:
    """Return the space that was described."""
    return codec.unpack(registry.find("space", description["name"]), {}, description["fields"])


class Worker:
    """A process that does some work and answers what it is told.

    Args:
        work: a function of a module; it is given a socket, the head and the tensors.
        head: what it is told first.
        shared: tensors, from `channel.share`.
    """

    def __init__(self, work: Work, head: Json, shared: tuple[int, Json]) -> None:
        self.talk, theirs = socket.socketpair()
        end, self._lifeline = os.pipe()
        name = f"{work.__module__}:{work.__qualname__}"
        module = ["-P", "-m", "fedtailor.pretrain.processes"]
        path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            [sys.executable, *module, name, str(theirs.fileno()), str(end)],
            pass_fds=(theirs.fileno(), end),
            env=KEEP_MEMORY | os.environ | path,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the parent alone
        )
        theirs.close()
        os.close(end)
        self.send(head, shared)

    def send(self, head: Json, shared: tuple[int, Json] | None = None) -> None:
        """Tell it something; whether it is still there shows when it is asked."""
        with suppress(ConnectionError):
            channel.send(self.talk, head, shared)

    def receive(self) -> tuple[Json, Tensors]:
        """Wait for its answer, or say in one sentence why there is none."""
        try:
            head, tensors = channel.receive(self.talk)
        except (EOFError, ConnectionError):
            with suppress(subprocess.TimeoutExpired):  # its own reason, not our kill
                self._process.wait(timeout=10)
            code = self._process.poll()
            reason = (
                f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
            )
            raise UserError(
                f"pretrain: a worker process died ({reason}); what was saved is used when the"
                " command is run again"
            ) from None
        if "failure" in head:
            print(head["details"], file=sys.stderr)
            raise UserError(f"pretrain: a worker process failed ({head['failure']})")
        return head, tensors

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.talk.close()
        os.close(self._lifeline)
        self._process.kill()
        self._process.wait()


def main(name: str, talk: int, lifeline: int) -> None:
    """Do the work of that name for the parent at the other end of the socket."""
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    parent = socket.socket(fileno=talk)
    module, _, function = name.partition(":")
    try:
        getattr(importlib.import_module(module), function)(parent, *channel.receive(parent))
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        details = "".join(traceback.format_exception(error))
        channel.send(parent, {"failure": reason, "details": details})


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: it returns when the parent is gone
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
