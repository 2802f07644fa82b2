"""The only loop over rounds."""

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fedtailor.algorithms._base import Algorithm, state_types
from fedtailor.core import codec
from fedtailor.core.rng import rng_for
from fedtailor.core.types import NEVER, ClientInfo, Failure, Log, Message, Result, Server, Setting
from fedtailor.engines._base import Done, Engine, Ticket
from fedtailor.networks import cost
from fedtailor.runs.config import Config
from fedtailor.runs.folder import START, Page, Run
from fedtailor.runs.summary import worst_tenth

TESTED_AT_ONCE = 64  # messages are made a few at a time: there may be many clients


class ClientFailedError(Exception):
    """A client failed and the config says to stop."""


@dataclass
class Progress:
    """How far the loop is: it writes, whoever wants to show it reads."""

    rounds: int
    round: int = 0
    doing: str = "starting"
    done: int = 0  # clients, of what is being done
    total: int = 0
    mean: float | None = None  # test accuracy, untuned, at the last evaluation
    worst: float | None = None  # the same over the worst tenth of the clients
    bytes: int = 0  # both directions, since the start
    started_at: int = 0  # the round before the first that this process does
    seconds: float = 0.0  # spent on rounds by this process
    rounds_done: int = 0  # by this process


@dataclass(frozen=True)
class Loop:
    """What the loop works with."""

    config: Config
    setting: Setting
    clients: tuple[ClientInfo, ...]  # that take part
    engine: Engine
    run: Run
    progress: Progress

    @property
    def algorithm(self) -> Algorithm[Any, Any]:
        """The algorithm."""
        return self.config.algorithm

    def server(self, round: int) -> Server:
        """Return what the server's side may look at in a round."""
        return Server(self.setting, round, self.clients)


def federate(loop: Loop) -> None:
    """Run or go on with the rounds, then test what every client would deploy."""
    state, versions = _restore(loop)
    rounds = loop.config.rounds
    for round in range(loop.run.last_round() + 1, rounds + 1):
        began = time.monotonic()
        page, loop.progress.round = Page(round), round
        state = _train(loop, page, state, versions)
        if round == rounds:
            _test(loop, page, "deploy", state, versions)
        elif round % loop.config.eval_every == 0:
            _test(loop, page, "evaluate", state, versions)
        page.wall_s = time.monotonic() - began
        loop.run.commit(page, state)
        loop.progress.seconds += page.wall_s
        loop.progress.rounds_done += 1
    if not loop.run.finished():
        _test_selected(loop)
    loop.run.tidy()  # what a client that failed may have written


def _restore(loop: Loop) -> tuple[Any, dict[int, int]]:
    """Take up the last committed state, or make and commit the first one."""
    last = loop.run.last_round()
    if last < 0:
        _begin(loop)
        last = 0
    kind, _ = state_types(loop.algorithm)
    loop.progress.bytes = loop.run.query("SELECT coalesce(sum(bytes), 0) FROM message")[0][0]
    # Also a first state is read back: what a resumed run would get is what every run gets.
    return codec.read(kind, loop.run.server_path(last)), loop.run.versions(last)


def _begin(loop: Loop) -> None:
    """Commit the first state; one that other clients trained is worth a test."""
    began, page = time.monotonic(), Page(0)
    if loop.config.start is None:
        state = loop.algorithm.server_init(loop.server(0))
    else:
        kind, _ = state_types(loop.algorithm)
        state = codec.read(kind, loop.run.path / START)
        if loop.config.population != "training":
            state = loop.algorithm.welcome(state)
        _test(loop, page, "evaluate" if loop.config.rounds else "deploy", state, {})
        page.wall_s = time.monotonic() - began
    loop.run.commit(page, state)


def _train(loop: Loop, page: Page, state: Any, versions: dict[int, int]) -> Any:
    """Do one round of training; return the server's new state."""
    server = loop.server(page.round)
    cohort = draw_cohort(loop.clients, loop.config.cohort, loop.setting.seed, page.round)
    messages = loop.algorithm.configure(server, state, cohort)
    tickets = [
        Ticket("train", info.id, page.round, versions.get(info.id, NEVER))
        for info in cohort
        if info.id in messages
    ]
    for ticket in tickets:
        sent = messages[ticket.client].nbytes
        page.messages.append((page.round, ticket.client, "down", sent))
        loop.progress.bytes += sent
    outcomes = _each(loop, loop.algorithm.doing, tickets, messages)
    results = _results(loop, page, outcomes, messages, versions)
    first = next(results, None)
    if first is None:  # nobody answered: nothing to take in
        return state
    state = loop.algorithm.aggregate(server, state, itertools.chain([first], results))
    for _ in results:  # an algorithm need not look at all: they are filed all the same
        pass
    for client, metrics in loop.algorithm.observe(server, state).items():
        page.log(client, Log(metrics))
    return state


def draw_cohort(
    clients: tuple[ClientInfo, ...], size: int | None, seed: int, round: int
) -> list[ClientInfo]:
    """Choose the clients of a round, in the order of their ids."""
    if size is None or size >= len(clients):
        return list(clients)
    chosen = torch.randperm(len(clients), generator=rng_for(seed, round, "cohort"))[:size]
    return [clients[i] for i in sorted(chosen.tolist())]


def _each(
    loop: Loop, doing: str, tickets: list[Ticket], messages: dict[int, Message]
) -> Iterator[tuple[Ticket, Done]]:
    """Have steps done; yield the successful ones in the order of the tickets, as they arrive."""
    loop.progress.doing, loop.progress.done, loop.progress.total = doing, 0, len(tickets)
    for ticket in tickets:
        loop.engine.submit(ticket, messages[ticket.client])
    awaited, early = set(tickets), dict[Ticket, Done | Failure]()
    for ticket in tickets:
        while ticket not in early:
            arrived = loop.engine.collect()
            if arrived is None or arrived[0] not in awaited:
                raise RuntimeError(f"the engine lost client {ticket.client}")
            early[arrived[0]] = arrived[1]
            loop.progress.done += 1
        outcome = early.pop(ticket)
        if isinstance(outcome, Done):
            yield ticket, outcome
        else:
            _handle_failure(loop, ticket, outcome)


def _handle_failure(loop: Loop, ticket: Ticket, failure: Failure) -> None:
    text = (
        f"client {ticket.client} failed to {ticket.step} in round {ticket.round}: {failure.reason}"
    )
    loop.run.note(ticket.round, ticket.client, "failure", f"{text}\n{failure.details}".rstrip())
    if loop.config.on_failure == "stop":
        raise ClientFailedError(text)


def _results(
    loop: Loop,
    page: Page,
    outcomes: Iterable[tuple[Ticket, Done]],
    messages: dict[int, Message],
    versions: dict[int, int],
) -> Iterator[Result]:
    """Turn steps that succeeded into what the server learns, filing them on the way."""
    clients = {info.id: info for info in loop.clients}
    for ticket, done in outcomes:
        info = clients[ticket.client]
        down, up = messages[info.id].nbytes, done.reply.message.nbytes
        seconds = done.seconds
        if loop.config.clock == "modelled":
            seconds = cost.round_seconds(done.macs, down + up, info.budget)
        page.log(info.id, done.reply.log)
        page.messages.append((page.round, info.id, "up", up))
        page.modelled_s = max(page.modelled_s, seconds)
        loop.progress.bytes += up
        if done.stateful:
            page.versions.append((info.id, page.round))
            versions[info.id] = page.round
        yield Result(info, messages[info.id].info, done.reply.message, seconds, page.round - 1)


def _test(
    loop: Loop,
    page: Page,
    step: Literal["evaluate", "deploy"],
    state: Any,
    versions: dict[int, int],
) -> None:
    """Test what every client would deploy after this round, also of those never sampled."""
    server = loop.server(page.round)
    models: dict[str, None] = {}
    doing = "testing" if page.round == loop.progress.round else f"testing round {page.round}"
    for start in range(0, len(loop.clients), TESTED_AT_ONCE):
        some = loop.clients[start : start + TESTED_AT_ONCE]
        messages = {info.id: loop.algorithm.serve(server, state, info) for info in some}
        tickets = [Ticket(step, i.id, page.round, versions.get(i.id, NEVER)) for i in some]
        for ticket, done in _each(loop, doing, tickets, messages):
            page.log(ticket.client, done.reply.log)
            models |= dict.fromkeys(m.name.split("/")[0] for m in done.reply.log.metrics)
    page.event(None, "models", json.dumps(list(models)))
    val, test = (page.values(split, "untuned/accuracy") for split in ("val", "test"))
    if not test:
        raise ClientFailedError(f"no client could be tested in round {page.round}")
    if len(val) == len(loop.clients):  # means over different clients cannot be compared
        page.val = sum(val) / len(val)
    loop.progress.mean, loop.progress.worst = float(np.mean(test)), worst_tenth(np.array(test))


def _test_selected(loop: Loop) -> None:
    """Test all models of the round that validation chose, if it is not the last one."""
    began = time.monotonic()
    best = loop.run.best_round()
    best = loop.config.rounds if best is None else best
    page = Page(best)
    if best != loop.config.rounds:
        kind, _ = state_types(loop.algorithm)
        state = codec.read(kind, loop.run.server_path(best))
        _test(loop, page, "deploy", state, loop.run.versions(best))
    page.event(None, "finished", f"validation chose round {best}")
    page.wall_s = time.monotonic() - began
    loop.run.append(page)
