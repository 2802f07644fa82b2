"""Whole runs that are killed, or whose messages are read."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedtailor.core.types import Message
from fedtailor.engines import _in_process

KILLED = """
import os, signal, sys
from fedtailor.engines import _in_process
from fedtailor import resume, run

config, path, last = sys.argv[1:]
performed, trained = _in_process.perform, 0

def perform(site, ticket, message):
    global trained
    done = performed(site, ticket, message)
    trained += ticket.step == "train"
    if trained == int(last):
        os.kill(os.getpid(), signal.SIGKILL)
    return done

_in_process.perform = perform
resume(path) if os.path.exists(path) else run(config, path)
"""


def kill(config: Path, path: Path, after: int) -> None:
    """Begin or resume a run, and kill it as soon as so many clients have trained."""
    command = [sys.executable, "-c", KILLED, str(config), str(path), str(after)]
    assert subprocess.run(command, check=False).returncode == -9


class Step(NamedTuple):
    """What was asked of a client, and what it answered."""

    step: str
    sent: Message
    reply: Message


@contextmanager
def recorded() -> Iterator[list[Step]]:
    """List every step that is done in this process, as it arrives."""
    found: list[Step] = []
    performed = _in_process.perform

    def listening(host: Any, ticket: Any, message: Message) -> Any:
        done = performed(host, ticket, message)
        found.append(Step(ticket.step, message, done.reply.message))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_in_process, "perform", listening)
        yield found
