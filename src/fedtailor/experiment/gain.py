"""Personalisation gain: every client's final network, tuned and tested on every client's data.

This moves private networks between clients, which only a simulation may. Nothing of the run
changes: pairs of a network and a client are a table of their own, written one by one, so that what
is asked for again goes on with those that are missing.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.core.space import Arch
from fedtailor.core.types import NEVER, ClientInfo, Failure, Message, Tensors
from fedtailor.data.federation import load_federation
from fedtailor.engines._base import Ticket
from fedtailor.experiment.following import followed
from fedtailor.experiment.lifecycle import open_engine, started_engine
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.progress import RunProgress
from fedtailor.experiment.rounds import committed
from fedtailor.experiment.steps import ClientFailedError, Execution, outcomes
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import cut, shapes
from fedtailor.runs import database, pair_table
from fedtailor.runs.config import Config, read_config
from fedtailor.runs.folder import CONFIG, Run
from fedtailor.runs.gains import gain_table
from fedtailor.runs.needs import check_needs
from fedtailor.runs.pair_table import TunedPair
from fedtailor.runs.partition_file import check_partition
from fedtailor.runs.saved_models import read_model, refuse_without_models

Weights: TypeAlias = Literal["theirs", "global"]
EPOCHS = 30  # the paper's


@dataclass(frozen=True)
class Question:
    """What is asked of a run."""

    weights: Weights
    epochs: int
    clients: tuple[int, ...]


def measure_gain(
    path: str | Path,
    epochs: int = EPOCHS,
    weights: Weights = "theirs",
    clients: int | None = None,
    progress: bool | RunProgress | None = None,
) -> dict[str, Any]:
    """Tune every client's final network on every client's data; return what is personal about it.

    Args:
        path: a finished run, whose clients' models were saved.
        epochs: of tuning, of clients' own networks too; what counts is the last.
        weights: "theirs": networks as they are; "global": their architectures, with weights cut
            from the run's last supernet, so that architectures alone differ.
        clients: only so many, the first ones.
        progress: as of `run`.
    """
    run = Run(path)
    question = _question(run, epochs, weights, clients)
    known = pair_table.tuned_pairs(run.db, weights, epochs)
    there = {(pair.client, pair.network) for pair in known}
    if any((i, j) not in there for i in question.clients for j in question.clients):
        with followed(progress, run.path.name) as state:
            state.unit, state.rounds = "network", len(question.clients)
            _measure(run, question, state)
    return gain_table(run, weights, epochs, question.clients)


def _question(run: Run, epochs: int, weights: Weights, clients: int | None) -> Question:
    """Put together what is asked, or say why it cannot be."""
    if weights not in ("theirs", "global"):
        raise UserError(f"weights: must be theirs or global, not {weights!r}")
    if epochs < 0:
        raise UserError(f"epochs: must be at least 0, not {epochs}")
    refuse_without_models(run)
    last = run.last_round()
    there = [c for c, _ in database.of_clients(run.db, last, "test", "untuned", "accuracy")]
    if len(there) < 2:
        raise UserError(
            f"{run.path}: a gain needs at least 2 clients, but the run has {len(there)}"
        )
    if clients is not None and not 2 <= clients <= len(there):
        raise UserError(f"clients: must be from 2 to the run's {len(there)}, not {clients}")
    return Question(weights, epochs, tuple(there[:clients]))


def _measure(run: Run, question: Question, progress: RunProgress) -> None:
    """Fill in the pairs that are missing."""
    config = read_config(run.path / CONFIG)
    if question.weights == "global" and not (config.algorithm.searches and config.space.choices):
        raise _no_supernet(config)
    with lock_folder(run.path), started_engine(config.engine) as engine:
        prepared = prepare(config, load_federation(config.data))
        check_partition(run, prepared.federation)
        check_needs(run, prepared.needs)
        prepared = open_engine(engine, prepared, run)
        clients = tuple(prepared.clients[i] for i in prepared.participants)
        execution = Execution(config, prepared.setting, clients, engine, run, progress)
        state, versions = committed(execution, run.last_round())
        for number, owner in enumerate(question.clients, start=1):
            began, progress.round = time.monotonic(), number
            about, weights = read_model(run, owner)
            arch = tuple(about["arch"])
            if question.weights == "global":
                weights = _from_supernet(execution, state, prepared.clients[owner], arch)
            _test_network(execution, question, versions, owner, arch, weights)
            progress.seconds += time.monotonic() - began
            progress.rounds_done += 1


def _test_network(
    execution: Execution,
    question: Question,
    versions: dict[int, int],
    owner: int,
    arch: Arch,
    weights: Tensors,
) -> None:
    """Send one network to all clients that have not tested it; write down what each found.

    No client is told whose it is, and no key knows: of equal networks come equal accuracies.
    """
    run, last = execution.run, execution.run.last_round()
    digest = codec.digest((arch, dict(sorted(weights.items()))))
    known = {
        pair.client: pair.digest
        for pair in pair_table.tuned_pairs(run.db, question.weights, question.epochs)
        if pair.network == owner
    }
    if known and set(known.values()) != {digest}:
        raise UserError(
            f"{run.path}: the network of client {owner} is not the one that some pairs were "
            "measured with"
        )
    left = [client for client in question.clients if client not in known]
    message = Message(weights, {"arch": list(arch), "epochs": question.epochs})
    tickets = [Ticket("tune", client, last, versions.get(client, NEVER)) for client in left]
    for ticket, done in outcomes(execution, "tuning", tickets, dict.fromkeys(left, message)):
        if isinstance(done, Failure):
            text = (
                f"the network of client {owner} could not be tuned on the data of client "
                f"{ticket.client}: {done.reason}"
            )
            run.note(last, ticket.client, "gain", f"{text}\n{done.details}".rstrip())
            raise ClientFailedError(text)
        found = {metric.model: metric.value for metric in done.reply.log.metrics}
        untuned = found["untuned"]
        pair = TunedPair(ticket.client, owner, untuned, found.get("tuned", untuned), digest)
        pair_table.add_pair(run.db, question.weights, question.epochs, pair)


def _from_supernet(execution: Execution, state: Any, owner: ClientInfo, arch: Arch) -> Tensors:
    """Cut an architecture from what the server would serve the client that has it."""
    setting, last = execution.setting, execution.run.last_round()
    served = execution.algorithm.serve(execution.server(last), state, owner).tensors
    measured = any(is_statistic(name) for name in served)
    wanted = shapes(setting.space, arch, setting.task, measured)
    try:
        return cut(served, wanted)
    except (KeyError, ValueError):  # what is served is no supernet, nor this part of one
        raise _no_supernet(execution.config) from None


def _no_supernet(config: Config) -> UserError:
    return UserError(
        f"weights: {config.algorithm_name} with {config.space_name} has no global supernet to cut "
        "networks from, so take theirs"
    )
