"""Steps that are done in worker processes."""

import os
import resource
import selectors
import sys
import time
from collections import deque

from fedtailor.core import channel, codec
from fedtailor.core.errors import UserError
from fedtailor.core.processes import Process, Shared
from fedtailor.core.types import Failure, Json, Log, Message, Reply
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._packing import pack_host
from fedtailor.engines._worker import serve


class _Worker(Process):
    """A worker process, and what it is doing."""

    def __init__(self, number: int) -> None:
        super().__init__(serve)
        self.number = number
        self.ticket: Ticket | None = None
        self.ready = False


class WorkerPool:
    """Steps are done in worker processes of one torch thread each.

    A worker that dies is replaced, and the client it worked for is reported as failed.
    """

    def __init__(self, count: int) -> None:
        """Start the processes; they import what they need while the data is being read."""
        self._head: dict[str, Json] = {}
        self._shared: Shared | None = None
        self._waiting: deque[tuple[Ticket, Message]] = deque()
        self._published: dict[int, tuple[Message, Shared]] = {}
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

    def open(self, host: ClientHost) -> None:
        """Tell the workers which clients they host."""
        tensors, packed = pack_host(host)
        self._head, self._shared = {"host": packed}, channel.share(tensors)
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
                while self._workers[number].process.poll() is not None:  # it died without work
                    self._receive(self._workers[number])  # the last it said, then its end
                worker = self._workers[number]
                worker.ticket = ticket
                worker.send(head, shared)

    def _publish(self, message: Message) -> Shared | None:
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
            head, tensors = worker.receive()
        except EOFError:
            return self._replace(worker)
        if "ready" in head:
            worker.ready = True
            return None
        worker.ticket = None
        if "refusal" in head:  # only while it starts: what a client refuses is a failure
            raise _cannot_start(worker, head["refusal"])
        if "failure" in head:
            failure = codec.unpack(Failure, {}, head["failure"])
            if not worker.ready:
                print(failure.details, file=sys.stderr)
                raise _cannot_start(worker, failure.reason)
            return failure
        reply = Reply(Message(tensors, head["info"]), codec.unpack(Log, {}, head["log"]))
        return Done(reply, head["macs"], head["seconds"], head["state_digest"])

    def _replace(self, worker: _Worker) -> Failure:
        reason = worker.cause_of_death()
        self._end(worker)
        self._false_starts = 0 if worker.ready else self._false_starts + 1
        code = worker.process.returncode
        if not worker.ready and (code > 0 or self._false_starts > 3):  # the next fares no better
            raise _cannot_start(worker, reason)
        self._workers[worker.number] = self._start(worker.number)
        return Failure(f"its worker process died ({reason})")

    def _start(self, number: int) -> _Worker:
        worker = _Worker(number)
        self._selector.register(worker.talk, selectors.EVENT_READ, worker)
        if self._head:
            self._brief(worker)
        return worker

    def _brief(self, worker: _Worker) -> None:
        worker.send(self._head | {"worker": worker.number}, self._shared)

    def _end(self, worker: _Worker) -> None:
        if worker.talk.fileno() >= 0:
            self._selector.unregister(worker.talk)
        worker.close()


def _cannot_start(worker: _Worker, reason: str) -> UserError:
    return UserError(
        f"engine.workers: worker {worker.number} ended ({reason}) "
        "before it could start; see the lines above, or try engine.workers=0"
    )


def _allow_many_files() -> None:
    """Every reply that waits to be read holds a descriptor, and a cohort may be large."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
