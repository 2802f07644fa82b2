"""Processes that work for this one."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedtailor.core import channel, codec
from fedtailor.core.processes import Process, Work, shared
from fedtailor.core.types import Failure, Json, Tensors

Start = Callable[[Work], Process]


def double(parent: socket.socket, head: Json, tensors: Tensors) -> None:
    """Answer all that is asked, twice as large."""
    while True:
        with shared({name: 2 * tensor for name, tensor in tensors.items()}) as memory:
            channel.send(parent, {"threads": torch.get_num_threads(), **head}, memory)
        head, tensors = channel.receive(parent)


def fail(parent: socket.socket, head: Json, tensors: Tensors) -> None:
    raise ValueError(head["why"])


def leave(parent: socket.socket, head: Json, tensors: Tensors) -> None:
    sys.exit(head["code"])


@pytest.fixture
def started() -> Iterator[Start]:
    """Return what starts processes, which end with the test."""
    found: list[Process] = []

    def start(work: Work) -> Process:
        found.append(Process(work))
        return found[-1]

    yield start
    for process in found:
        process.close()
        process.close()  # twice does no harm


def test_it_answers_by_one_thread(started: Start):
    process = started(double)
    for number in (1.0, 3.0):
        with shared({"x": torch.full((2,), number)}) as memory:
            process.send({"number": number}, memory)
        head, tensors = process.receive()
        assert head == {"threads": 1, "number": number}
        assert tensors["x"].tolist() == [2 * number] * 2


def test_what_goes_wrong_is_sent(started: Start):
    process = started(fail)
    process.send({"why": "it is\nlate"})
    failure = codec.unpack(Failure, {}, process.receive()[0]["failure"])
    assert failure.reason == "ValueError: it is" and "Traceback" in failure.details
    with pytest.raises(EOFError):
        process.receive()


def test_how_it_ended_is_known(started: Start):
    ended, killed = started(leave), started(double)
    ended.send({"code": 3})
    killed.send({})
    killed.receive()
    os.kill(killed.process.pid, signal.SIGKILL)
    for process, cause in ((ended, "exit code 3"), (killed, "SIGKILL")):
        with pytest.raises(EOFError):
            process.receive()
        assert process.cause_of_death() == cause
        process.send({})  # nobody is there: no error before an answer is wanted


def test_ctrl_c_is_for_the_parent_alone(started: Start):
    process = started(double)
    assert os.getpgid(process.process.pid) != os.getpgid(0)


def test_closing_leaves_no_process_and_no_descriptor(started: Start):
    process = started(double)
    process.send({})
    process.receive()
    descriptors = len(list(Path("/dev/fd").iterdir()))
    process.close()
    assert process.process.returncode is not None
    assert len(list(Path("/dev/fd").iterdir())) == descriptors - 2


def test_it_ends_when_the_lifeline_does(started: Start):
    process = started(double)
    process.send({})
    process.receive()
    os.close(process._lifeline)
    deadline = time.monotonic() + 10
    while process.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.process.returncode == 1
    process._lifeline = os.open(os.devnull, os.O_RDONLY)
