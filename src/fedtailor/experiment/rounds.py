"""The only loop over rounds."""

import itertools
import json
import time
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch

from fedtailor.algorithms._base import state_types
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for
from fedtailor.core.stopwatch import TimedItems
from fedtailor.core.sums import mean
from fedtailor.core.types import NEVER, ClientInfo, Log, Result, Server, Spent
from fedtailor.engines._base import Ticket
from fedtailor.experiment.steps import ClientFailedError, Execution, answers, filed
from fedtailor.runs import database
from fedtailor.runs.folder import START
from fedtailor.runs.record import RoundRecord
from fedtailor.runs.summary import worst_tenth

TESTED_AT_ONCE = 64  # messages are made a few at a time: there may be many clients


def do_rounds(execution: Execution) -> None:
    """Do the rounds that are left, then test what every client would deploy."""
    state, versions = _restore(execution)
    equipped = database.equipped_clients(execution.run.db)
    rounds, progress = execution.config.rounds, execution.progress
    for round in range(execution.run.last_round() + 1, rounds + 1):
        began = time.monotonic()
        record, progress.round = RoundRecord(round), round
        state = _train(execution, record, state, versions, equipped)
        versions |= {client: made for client, made, _ in record.versions}
        equipped |= record.equipped()
        if round == rounds or round % execution.config.eval_every == 0:
            step = "deploy" if round == rounds else "evaluate"
            _test(execution, record, step, state, versions)
            _inspect(execution, record, state)
        record.wall_s = time.monotonic() - began
        execution.run.commit(record, state)
        progress.seconds += record.wall_s
        progress.rounds_done += 1
    if not execution.run.finished():
        _test_selected(execution)


def draw_cohort(
    clients: tuple[ClientInfo, ...], size: int | None, seed: int, round: int
) -> list[ClientInfo]:
    """Choose the clients of a round, in the order of their ids."""
    if size is None or size >= len(clients):
        return list(clients)
    chosen = torch.randperm(len(clients), generator=rng_for(seed, round, "cohort"))[:size]
    return [clients[i] for i in sorted(chosen.tolist())]


def _restore(execution: Execution) -> tuple[Any, dict[int, int]]:
    """Take up the last committed state, or make and commit the first one."""
    run = execution.run
    if run.last_round() < 0:
        execution.progress.doing = "making the first networks"
        _begin(execution)
    execution.progress.bytes = sum(database.bytes_sent(run.db).values())
    # Also a first state is read back: what a resumed run would get is what every run gets.
    return committed(execution, run.last_round())


def committed(execution: Execution, round: int) -> tuple[Any, dict[int, int]]:
    """Read the server's state after a round, and of which round each client's private state is."""
    run = execution.run
    kind, _ = state_types(execution.algorithm)
    path, known = run.server_path(round), database.server_state(run.db, round)
    state = codec.read(kind, path)
    if known is None or codec.digest(state) != known[1]:
        raise UserError(f"{path}: is not the state that was committed")
    return state, {client: made for client, made, _ in database.client_states(run.db, round)}


def _begin(execution: Execution) -> None:
    """Commit the first state; one that other clients trained is worth a test."""
    began, record, config = time.monotonic(), RoundRecord(0), execution.config
    if config.start is None:
        state = execution.algorithm.server_init(execution.server(0))
    else:
        kind, _ = state_types(execution.algorithm)
        state = codec.read(kind, execution.run.path / START)
        if config.population != "training":
            state = execution.algorithm.welcome(state)
        _test(execution, record, "evaluate" if config.rounds else "deploy", state, {})
        record.wall_s = time.monotonic() - began
    _inspect(execution, record, state)
    execution.run.commit(record, state)


def _train(
    execution: Execution,
    record: RoundRecord,
    state: Any,
    versions: dict[int, int],
    equipped: set[int],
) -> Any:
    """Do one round of training; return the server's new state."""
    algorithm, server = execution.algorithm, execution.server(record.round)
    seed, size = execution.setting.seed, execution.config.cohort
    cohort = {info.id: info for info in draw_cohort(execution.clients, size, seed, record.round)}
    began = time.thread_time()
    messages = algorithm.configure(server, state, list(cohort.values()))
    record.spent(None, Spent("configure", time.thread_time() - began))
    tickets = [
        Ticket("train", client, record.round, versions.get(client, NEVER))
        for client in cohort
        if client in messages
    ]
    for ticket in tickets:
        record.message(ticket.client, "down", messages[ticket.client].nbytes)
        if execution.bytes_once and ticket.client not in equipped:
            record.message(ticket.client, "once", execution.bytes_once)
    execution.progress.bytes += sum(nbytes for *_, nbytes in record.messages)
    results = (  # a reply is let go of as soon as it is merged
        filed(execution, record, server, cohort[ticket.client], messages[ticket.client], done)
        for ticket, done in answers(execution, algorithm.doing, tickets, messages)
    )
    first = next(results, None)
    if first is None:  # nobody answered: nothing to take in
        return state
    state = _aggregate(execution, record, server, state, itertools.chain([first], results))
    for _ in results:  # an algorithm need not look at all: they are filed all the same
        pass
    record.modelled_s += _server_seconds(execution, record, server)
    for client, metrics in algorithm.observe(server, state).items():
        record.log(client, Log(metrics))
    return state


def _server_seconds(execution: Execution, record: RoundRecord, server: Server) -> float:
    """Return the server's part of a round's time, by the run's clock."""
    if execution.config.clock == "modelled":
        return server.meter.macs / execution.config.budget.server_speed
    return sum(seconds for _, client, _, seconds, _ in record.timings if client is None)


def _aggregate(
    execution: Execution,
    record: RoundRecord,
    server: Server,
    state: Any,
    results: Iterable[Result],
) -> Any:
    """Let the server take the results in, and file what that cost it; return its new state.

    Without workers clients do their steps while it waits for them, in this very thread: what it
    takes to get a result is not the server's cost.
    """
    arriving, began = TimedItems(results), time.thread_time()
    state = execution.algorithm.aggregate(server, state, arriving)
    seconds = time.thread_time() - began - arriving.seconds
    record.spent(None, Spent("aggregate", seconds))
    return state


def _test(
    execution: Execution,
    record: RoundRecord,
    step: Literal["evaluate", "deploy"],
    state: Any,
    versions: dict[int, int],
) -> None:
    """Test what every client would deploy after this round, also of those never sampled."""
    clients, progress, round = execution.clients, execution.progress, record.round
    server, models = execution.server(round), list[str]()
    doing = "testing" if round == progress.round else f"testing round {round}"
    for start in range(0, len(clients), TESTED_AT_ONCE):
        some = clients[start : start + TESTED_AT_ONCE]
        messages = {info.id: execution.algorithm.serve(server, state, info) for info in some}
        tickets = [Ticket(step, i.id, round, versions.get(i.id, NEVER)) for i in some]
        for ticket, done in answers(execution, doing, tickets, messages):
            record.log(ticket.client, done.reply.log)
            own = list(dict.fromkeys(metric.model for metric in done.reply.log.metrics))
            models = max(models, own, key=len)  # a client may lack one that others have
    record.event(None, "models", json.dumps(models))
    val, test = record.accuracies("val"), record.accuracies("test")
    if not test:
        raise ClientFailedError(f"no client could be tested in round {round}")
    if len(val) == len(clients):  # means over different clients cannot be compared
        record.val = mean(val)
    progress.mean, progress.worst = float(np.mean(test)), worst_tenth(np.array(test))


def _inspect(execution: Execution, record: RoundRecord, state: Any) -> None:
    """File what the server knows of the search: `show` and the report read no states.

    It takes time for every client, as tests do, so it is done when these are.
    """
    if execution.algorithm.searches:
        record.search = execution.algorithm.inspect(execution.setting.space, state)


def _test_selected(execution: Execution) -> None:
    """Test all models of the round that validation chose, if it is not the last one."""
    began, last = time.monotonic(), execution.config.rounds
    best = database.selected_round(execution.run.db)
    record = RoundRecord(last if best is None else best)
    if record.round != last:
        _test(execution, record, "deploy", *committed(execution, record.round))
    chosen = "no round" if best is None else f"round {best}"
    record.event(None, "finished", f"validation chose {chosen}")
    record.wall_s = time.monotonic() - began
    execution.run.append(record)
