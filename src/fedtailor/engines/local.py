"""The local engine: clients of a simulation, in this process or in worker processes."""

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass

from fedtailor.core import channel, codec
from fedtailor.core.errors import UserError
from fedtailor.core.types import Failure, Json, Log, Message, Reply, Tensors
from fedtailor.engines._base import Done, Ticket
from fedtailor.engines._client import Site, perform
from fedtailor.engines._worker import failure_of
from fedtailor.runs.config import EngineOptions


class InProcess:
    """Steps are done here, when they are collected: for debugging and the smallest machines."""

    def __init__(self, site: Site | None = None) -> None:
        self._site = site
        self._waiting: deque[tuple[Ticket, Message]] = deque()

    def open(self, site: Site, names: dict[str, str]) -> None:
        """Say what clients do, and with what."""
        self._site = site

    def submit(self, ticket: Ticket, message: Message) -> None:
        """Queue a step."""
        self._waiting.append((ticket, message))

    def collect(self, timeout: float | None = None) -> tuple[Ticket, Done | Failure] | None:
        """Do the next step; once begun it is not interrupted, whatever the timeout."""
        if not self._waiting or self._site is None:
            return None
        ticket, message = self._waiting.popleft()
        # A copy, as over a wire: whatever a client does to it, the server's own is safe.
        tensors = {name: tensor.detach().clone() for name, tensor in message.tensors.items()}
        received = Message(tensors, json.loads(json.dumps(message.info)))
        try:
            return ticket, perform(self._site, ticket, received)
        except (Exception, SystemExit) as error:  # a worker would end, this process must not
            return ticket, failure_of(error)

    def close(self) -> None:
        """Forget what was queued."""
        self._waiting.clear()


def make_engine(options: EngineOptions) -> "InProcess | Workers":
    """Start what takes time to start, before any data is read; then `open` it."""
    return Workers(options.workers) if options.workers else InProcess()


# Settings of glibc's allocator. By default the activations of every step are given back to the
# system and asked for again: a tenth of the time of a network of some size.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 29), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}


@dataclass(eq=False)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    talk: socket.socket
    lifeline: int
    ticket: Ticket | None = None
    ready: bool = False


class Workers:
    """Steps are done in worker processes of one torch thread each.

    A worker that dies is replaced, and the client it worked for is reported as failed.
    """

    def __init__(self, count: int) -> None:
        """Start the processes; they import what they need while the data is being read."""
        self._head: dict[str, Json] | None = None
        self._shared: tuple[int, Json] | None = None
        self._waiting: deque[tuple[Ticket, Message]] = deque()
        self._published: dict[int, tuple[Message, tuple[int, Json]]] = {}
        self._selector = selectors.DefaultSelector()
        self._false_starts = 0
        _allow_many_files()
        self._workers: list[_Worker] = []
        try:
            for number in range(count):
                self._workers.append(self._start(number))
        except BaseException:
            self.close()
            raise

    def open(self, site: Site, names: dict[str, str]) -> None:
        """Tell the workers what they work on; `names` are those of algorithm and space."""
        self._head, tensors = _describe(site, names)
        self._shared = channel.share(tensors)
        for worker in self._workers:
            self._brief(worker)

    def submit(self, ticket: Ticket, message: Message) -> None:
        """Give a step to an idle worker, or queue it."""
        self._waiting.append((ticket, message))
        self._dispatch()

    def collect(self, timeout: float | None = None) -> tuple[Ticket, Done | Failure] | None:
        """Wait for any worker to end its step."""
        self._dispatch()
        if not any(worker.ticket for worker in self._workers):
            self._forget_messages()
            return None
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._selector.select(left)
            if not ready:
                return None
            for key, _ in ready:
                worker: _Worker = key.data
                ticket, outcome = worker.ticket, self._receive(worker)
                self._dispatch()
                if ticket is not None and outcome is not None:
                    return ticket, outcome

    def close(self) -> None:
        """Kill the workers: nothing they have not reported counts."""
        for worker in self._workers:
            self._end(worker)
        self._forget_messages()
        self._selector.close()
        if self._shared:
            os.close(self._shared[0])
            self._shared = None

    def _dispatch(self) -> None:
        for number in range(len(self._workers)):
            if not self._waiting:
                return
            if self._workers[number].ticket is None:
                ticket, message = self._waiting.popleft()
                head = {"ticket": codec.pack(ticket)[1], "info": message.info}
                shared = self._publish(message)
                if self._workers[number].process.poll() is not None:  # it died without work
                    self._replace(self._workers[number])
                worker = self._workers[number]
                worker.ticket = ticket
                with contextlib.suppress(ConnectionError):  # dead: its socket says so when read
                    channel.send(worker.talk, head, shared)

    def _publish(self, message: Message) -> tuple[int, Json] | None:
        """Copy a message into shared memory once, however many clients get it."""
        if not message.tensors:
            return None
        if id(message) not in self._published:
            if len(self._published) > 2 * len(self._workers):
                self._forget_messages()
            self._published[id(message)] = (message, channel.share(message.tensors))
        return self._published[id(message)][1]

    def _forget_messages(self) -> None:
        """Let go of shared messages; a worker that has one keeps it until it is done."""
        for _, (descriptor, _) in self._published.values():
            os.close(descriptor)
        self._published.clear()

    def _receive(self, worker: _Worker) -> Done | Failure | None:
        try:
            head, tensors = channel.receive(worker.talk)
        except (EOFError, ConnectionError):
            return self._replace(worker)
        if "ready" in head:
            worker.ready = True
            return None
        worker.ticket = None
        if "failure" in head:
            return codec.unpack(Failure, {}, head["failure"])
        reply = Reply(Message(tensors, head["info"]), codec.unpack(Log, {}, head["log"]))
        return Done(reply, head["macs"], head["seconds"], head["state_digest"])

    def _replace(self, worker: _Worker) -> Failure:
        with contextlib.suppress(subprocess.TimeoutExpired):  # its own reason, not our kill
            worker.process.wait(timeout=10)
        self._end(worker)
        self._false_starts = 0 if worker.ready else self._false_starts + 1
        code = worker.process.returncode
        if not worker.ready and (code > 0 or self._false_starts > 3):  # the next fares no better
            raise UserError(
                f"engine.workers: worker {worker.number} ended ({_reason(worker.process)}) "
                "before it could start; see the lines above, or try engine.workers=0"
            )
        self._workers[worker.number] = self._start(worker.number)
        return Failure(f"its worker process died ({_reason(worker.process)})")

    def _start(self, number: int) -> _Worker:
        ours, theirs = socket.socketpair()
        end, lifeline = os.pipe()
        path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment = KEEP_MEMORY | os.environ | path
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "fedtailor.engines._worker",
                str(theirs.fileno()),
                str(end),
            ],
            pass_fds=(theirs.fileno(), end),
            env=environment,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the parent alone
        )
        theirs.close()
        os.close(end)
        worker = _Worker(number, process, ours, lifeline)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        if self._head:
            self._brief(worker)
        return worker

    def _brief(self, worker: _Worker) -> None:
        with contextlib.suppress(ConnectionError):  # dead: its socket says so when read
            channel.send(worker.talk, (self._head or {}) | {"worker": worker.number}, self._shared)

    def _end(self, worker: _Worker) -> None:
        if worker.talk.fileno() >= 0:
            self._selector.unregister(worker.talk)
            worker.talk.close()
            os.close(worker.lifeline)
        worker.process.kill()
        worker.process.wait()


def _allow_many_files() -> None:
    """Every reply that waits to be read holds a descriptor, and a cohort may be large."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _describe(site: Site, names: dict[str, str]) -> tuple[dict[str, Json], Tensors]:
    """Say in JSON and tensors what a worker needs to build the same site."""
    tensors, federation = codec.pack(site.federation, copy=False)
    setting = site.setting
    head = {
        "algorithm": {"name": names["algorithm"], "fields": codec.pack(site.algorithm)[1]},
        "space": {"name": names["space"], "fields": codec.pack(setting.space)[1]},
        "task": codec.pack(setting.task)[1],
        "rounds": setting.rounds,
        "seed": setting.seed,
        "arch": list(setting.arch),
        "init": setting.init,
        "clients": codec.pack(site.clients)[1],
        "states": str(site.states.resolve()),
        "models": str(site.models.resolve()) if site.models else None,
        "device": site.device,
        "federation": federation,
    }
    return head, tensors


def _reason(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
