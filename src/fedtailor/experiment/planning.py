"""What an experiment will cost, before it is run: measured on one batch of one client."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedtailor.core.compute import device_of, one_thread
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch
from fedtailor.core.types import Message, Server
from fedtailor.data.federation import Federation, load_federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform
from fedtailor.experiment.prepare import Prepared, prepare
from fedtailor.networks import cost
from fedtailor.runs.config import Config

TRIED = 32  # validation and test images of the rehearsal
DRAWN = 20  # networks of a search, to know what one of them costs on average


def plan(config: Config) -> dict[str, Any]:
    """Say who the clients are and what a run costs; nothing is kept of what is tried for it."""
    prepared = prepare(config, load_federation(config.data))
    federation, space = prepared.federation, prepared.setting.space
    measured = _rehearse(prepared)
    bounds = federation.bounds.tolist()
    sizes = {"smallest": space.smallest(), "middle": space.middle(), "largest": space.largest()}
    searched = config.algorithm.searches and bool(space.choices)
    return {
        "clients": federation.clients,
        "new_clients": federation.new_clients,
        "classes": list(federation.classes),
        "label_counts": federation.label_counts().tolist(),
        "sizes": [{"train": b - a, "val": c - b, "test": d - c} for a, b, c, d in bounds],
        **({"shifts": [str(one) for one in federation.shifts]} if federation.shifts else {}),
        "image_shape": list(prepared.setting.task.shape),
        **_prices(prepared, prepared.setting.arch),
        "architectures": {
            name: _prices(prepared, size) for name, size in sizes.items() if searched
        },
        **measured,
    }


def _prices(prepared: Prepared, arch: Arch) -> dict[str, Any]:
    """Say what an architecture costs, and which clients have too little memory for it."""
    setting, how = prepared.setting, prepared.config.algorithm
    found = cost.prices(setting.space, arch, setting.task, how.batch, how.optimizer)
    budgets = {client.id: client.budget.memory_mb for client in prepared.clients}
    over = [client for client, mb in budgets.items() if mb and mb < found["memory_mb"]]
    return {**found, "over_memory_budget": over}


def _rehearse(prepared: Prepared) -> dict[str, Any]:
    """Let one client do a step on one batch, and scale up."""
    config, setting, clients = prepared.config, prepared.setting, prepared.clients
    algorithm, federation = config.algorithm, prepared.federation
    if algorithm.searches:  # what is drawn must be trained here, whoever it was drawn for
        clients = tuple(replace(c, budget=replace(c.budget, memory_mb=None)) for c in clients)
    batch = min(algorithm.batch, clients[0].examples)
    small, device = _shorten(federation, batch), device_of(config.engine.device)
    server = Server(setting, 1, clients[: federation.clients])
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        host = ClientHost(algorithm, setting, small, clients, Path(folder), None, device)
        state = algorithm.server_init(server)
        message = algorithm.serve(server, state, clients[0])
        sent, more = _typical(config, server, state, message)
        trained = _second_of_two(host, Ticket("train", 0, 1), sent)
        tested = _second_of_two(host, Ticket("evaluate", 0, 1), message)
        deployed = _second_of_two(host, Ticket("deploy", 0, 1), message)
    down, up = (round(m.nbytes * more) for m in (sent, trained.reply.message))
    tuning = max(0.0, deployed.seconds - tested.seconds)
    return _scale_up(prepared, batch, (trained, tested.seconds, tuning, down, up))


def _typical(config: Config, server: Server, state: Any, served: Message) -> tuple[Message, float]:
    """Return a message of middling size of those a round sends, and their mean size beside it."""
    if not config.algorithm.searches:
        return served, 1.0
    drawn = config.algorithm.configure(server, state, list(server.clients[:DRAWN])).values()
    order = sorted(drawn, key=lambda message: message.nbytes)
    middle = order[len(order) // 2]
    return middle, sum(message.nbytes for message in order) / len(order) / middle.nbytes


def _scale_up(
    prepared: Prepared,
    batch: int,
    measured: tuple[Done, float, float, int, int],
) -> dict[str, Any]:
    trained, testing, tuning, down, up = measured
    config, federation, who = prepared.config, prepared.federation, prepared.participants
    clients = prepared.clients[who.start : who.stop]
    count = len(clients)
    cohort = min(config.cohort or count, count)
    batches = sum(c.examples for c in clients) / count / batch
    bounds = federation.bounds[who.start : who.stop]
    tested = (bounds[:, 3] - bounds[:, 1]).double().mean().item()
    lanes = max(1, config.engine.workers)
    evaluations = math.ceil(config.rounds / config.eval_every) + bool(config.start)
    training_s = config.rounds * cohort * batches * trained.seconds / lanes
    testing_s = evaluations * count * testing * tested / _tried(federation) / lanes
    tuning_s = 2 * count * batches * tuning / lanes  # after the last and the selected round
    per_round = [
        cost.round_seconds(trained.macs * c.examples / batch, down + up, c.budget) for c in clients
    ]
    return {
        "bytes_per_client_round": {"down": down, "up": up},
        "bytes": {"down": down * cohort * config.rounds, "up": up * cohort * config.rounds},
        "training_macs_per_client_round": trained.macs * batches,
        "modelled_round_s": {"mean": sum(per_round) / count, "slowest": max(per_round)},
        "estimated_s": {
            "training": round(training_s, 1),
            "testing": round(testing_s, 1),
            "tuning": round(tuning_s, 1),
            "total": round(training_s + testing_s + tuning_s, 1),
        },
    }


def _tried(federation: Federation) -> int:
    _, b, c, d = federation.bounds[0].tolist()
    return min(TRIED, c - b) + min(TRIED, d - c)


def _shorten(federation: Federation, batch: int) -> Federation:
    """Leave the first client one batch to train on and a few images to test on."""
    a, b, c, d = federation.bounds[0].tolist()
    rows = federation.rows
    parts = [rows[a : a + batch], rows[b : min(b + TRIED, c)], rows[c : min(c + TRIED, d)]]
    ends = torch.tensor([0, *(len(p) for p in parts)]).cumsum(0)
    return replace(federation, rows=torch.cat(parts), bounds=ends[None])


def _second_of_two(host: ClientHost, ticket: Ticket, message: Any) -> Done:
    """The first step of a kind pays for what is built only once."""
    try:
        perform(host, ticket, message)
        return perform(host, ticket, message)
    except Exception as error:
        raise UserError(f"a trial step to {ticket.step} failed: {error}") from error
