"""Having clients do steps: asked for all at once, taken in one after another, filed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedtailor.algorithms._base import Algorithm
from fedtailor.algorithms._replies import Forms, ReplyError, check_reply
from fedtailor.core.types import ClientInfo, Examples, Failure, Message, Result, Server, Setting
from fedtailor.engines._base import Done, Engine, Ticket
from fedtailor.experiment.progress import RunProgress
from fedtailor.networks import cost
from fedtailor.runs.clients import client_labels
from fedtailor.runs.config import Config
from fedtailor.runs.folder import Run
from fedtailor.runs.record import RoundRecord

NOTHING: Forms = {"nothing": ()}  # leaves a client that tests


class ClientFailedError(Exception):
    """A client failed and the config says to stop."""

    diverged: bool = False  # then it would fail again, whatever is mended but the config


def failed(text: str, failure: Failure) -> ClientFailedError:
    """Make an error of a failure, which knows whether going on can help."""
    error = ClientFailedError(text)
    error.diverged = failure.reason.startswith(("DivergedError", "FloatingPointError"))
    return error


@dataclass(frozen=True)
class Execution:
    """A run that is being executed: what is asked, who takes part, where they are, what is kept."""

    config: Config
    setting: Setting
    clients: tuple[ClientInfo, ...]  # that take part
    engine: Engine
    run: Run
    progress: RunProgress
    bytes_once: int = 0  # of the files that a client must have before its first round
    public: Examples | None = None  # the server's own images

    @property
    def algorithm(self) -> Algorithm[Any, Any]:
        """The algorithm."""
        return self.config.algorithm

    def server(self, round: int) -> Server:
        """Return what the server's side may look at in a round."""
        return Server(self.setting, round, self.clients, self.public)


def answers(
    execution: Execution, doing: str, tickets: list[Ticket], messages: dict[int, Message]
) -> Iterator[tuple[Ticket, Done]]:
    """Have steps done; yield those that succeeded in the order of the tickets, as they arrive."""
    for ticket, outcome in outcomes(execution, doing, tickets, messages):
        if isinstance(outcome, Failure):
            _note_failure(execution, ticket, outcome)
        else:
            yield ticket, outcome


def outcomes(
    execution: Execution, doing: str, tickets: list[Ticket], messages: dict[int, Message]
) -> Iterator[tuple[Ticket, Done | Failure]]:
    """Have steps done; yield what became of them in the order of the tickets, as it arrives."""
    progress = execution.progress
    progress.doing, progress.done, progress.total = doing, 0, len(tickets)
    for ticket in tickets:
        execution.engine.submit(ticket, messages[ticket.client])
    forms = execution.algorithm.sends()
    for ticket, outcome in _in_order(execution.engine, tickets, progress):
        # The one place where replies arrive: nothing is filed or merged that was not checked.
        allowed = forms if ticket.step == "train" else NOTHING
        yield ticket, _checked(allowed, messages[ticket.client], outcome)


def _checked(forms: Forms, sent: Message, outcome: Done | Failure) -> Done | Failure:
    """Turn a reply that is not what was declared into a failure, whatever the engine."""
    if isinstance(outcome, Failure):
        return outcome
    times = [(part.macs, part.seconds) for part in outcome.reply.log.times]
    for spent in ((outcome.macs, outcome.seconds), *times):  # of the first depend some rewards
        if not all(math.isfinite(value) and value >= 0 for value in spent):
            return Failure(f"it cannot have spent {spent[0]} multiply-adds in {spent[1]} seconds")
    try:
        check_reply(forms, sent, outcome.reply.message)
    except ReplyError as error:
        return Failure(str(error))
    return outcome


def filed(
    execution: Execution,
    record: RoundRecord,
    server: Server,
    info: ClientInfo,
    sent: Message,
    done: Done,
) -> Result:
    """File a client's step of training; return what the server learns of it.

    The server is charged a multiply-add for each number that it sends or takes in.
    """
    for message in (sent, done.reply.message):
        server.meter.macs += sum(tensor.numel() for tensor in message.tensors.values())
    down, up = sent.nbytes, done.reply.message.nbytes
    seconds = done.seconds
    if execution.config.clock == "modelled":
        seconds = cost.round_seconds(done.macs, down + up, info.budget)
    record.log(info.id, done.reply.log)
    record.message(info.id, "up", up)
    record.modelled_s = max(record.modelled_s, seconds)
    if done.state_digest is not None:
        record.state(info.id, done.state_digest)
    execution.progress.bytes += up
    return Result(info, sent.info, done.reply.message, seconds, record.round - 1)


def _in_order(
    engine: Engine, tickets: list[Ticket], progress: RunProgress
) -> Iterator[tuple[Ticket, Done | Failure]]:
    """Collect what was asked for; what arrives before its turn waits."""
    awaited, early = set(tickets), dict[Ticket, Done | Failure]()
    for ticket in tickets:
        while ticket not in early:
            arrived = engine.collect()
            if arrived is None or arrived[0] not in awaited:
                raise RuntimeError(f"the engine lost client {ticket.client}")
            early[arrived[0]] = arrived[1]
            progress.done += 1
        yield ticket, early.pop(ticket)


def _note_failure(execution: Execution, ticket: Ticket, failure: Failure) -> None:
    who = client_labels(execution.run)[ticket.client]
    text = f"client {who} failed to {ticket.step} in round {ticket.round}: {failure.reason}"
    details = f"{text}\n{failure.details}".rstrip()
    execution.run.note(ticket.round, ticket.client, "failure", details)
    if execution.config.on_failure == "stop":
        raise failed(text, failure)
