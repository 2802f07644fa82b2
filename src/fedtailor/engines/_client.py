"""One client's step: the same wherever it is done."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtailor.algorithms._base import state_types
from fedtailor.algorithms._replies import check_reply
from fedtailor.core import codec, registry
from fedtailor.core.rng import seed_for
from fedtailor.core.space import Arch
from fedtailor.core.stopwatch import Stopwatch
from fedtailor.core.types import (
    NEVER,
    Client,
    Log,
    Message,
    Metric,
    Reply,
    Spent,
    UsedArch,
)
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.networks import cost
from fedtailor.networks.network import Network
from fedtailor.networks.norms import is_statistic
from fedtailor.runs.folder import state_file
from fedtailor.runs.saved_models import model_folder, write_model
from fedtailor.search.policy import idle_genes
from fedtailor.training import learn


def perform(host: ClientHost, ticket: Ticket, message: Message) -> Done:
    """Do a client's step."""
    began = time.perf_counter()
    client = host.client(ticket)
    key = seed_for(host.setting.seed, ticket.round, ticket.client, ticket.step)
    digest = None
    with _seeded(key, host.device), _read_only(message):
        own = _read_state(host, ticket, client)
        if ticket.step == "train":
            own, reply = _train(host, client, own, message)
            check_reply(host.algorithm.sends(), message, reply.message)
            if own is not None:
                codec.write(host.states / state_file(ticket.client, ticket.round), own)
                digest = codec.digest(own)
        else:
            if not host.algorithm.holds_out(own):
                client = learn.joined(client)
            if ticket.step == "tune":
                reply = Reply(log=_tune(host, client, message))
            else:
                reply = Reply(log=_evaluate(host, ticket, client, own, message))
    seconds = time.perf_counter() - began
    return Done(_as_over_a_wire(reply), client.meter.macs, seconds, digest)


def _train(host: ClientHost, client: Client, own: Any, message: Message) -> tuple[Any, Reply]:
    """Let the algorithm train; where it tells no parts apart, its cost is that of the step."""
    watch = Stopwatch(client.meter)
    with watch.part("step"):
        own, reply = host.algorithm.train(client, own, message)
    if not reply.log.times:
        reply = replace(reply, log=replace(reply.log, times=watch.times()))
    return own, reply


def _as_over_a_wire(reply: Reply) -> Reply:
    """Give a reply the form every engine delivers: tensors of its own, info and log as JSON."""
    tensors = {
        name: t.detach().to("cpu", copy=True).contiguous()
        for name, t in reply.message.tensors.items()
    }
    metrics = tuple(replace(m, value=float(m.value)) for m in reply.log.metrics)
    times = tuple(Spent(s.part, float(s.seconds), float(s.macs)) for s in reply.log.times)
    log = codec.unpack(Log, *codec.pack(replace(reply.log, metrics=metrics, times=times)))
    return Reply(Message(tensors, json.loads(json.dumps(reply.message.info))), log)


def _read_state(host: ClientHost, ticket: Ticket, client: Client) -> Any:
    if ticket.version == NEVER:
        return host.algorithm.client_init(client)
    _, kind = state_types(host.algorithm)
    return codec.read(kind, host.states / state_file(ticket.client, ticket.version))


def _evaluate(host: ClientHost, ticket: Ticket, client: Client, own: Any, message: Message) -> Log:
    """Test what a client would deploy, on validation images only where none of them is trained."""
    metrics: list[Metric] = []
    found: list[UsedArch] = []
    network = None
    known = _trained_labels(client) if host.federation.tells_unseen else None
    splits = {"val": client.val, "test": client.test}
    for label, network in host.algorithm.deploy(client, own, message):
        if not metrics and label != "untuned":
            raise ValueError(f'the first model that deploy yields must be "untuned", not {label!r}')
        scores = {
            split: learn.evaluate(network, images, known=known)
            for split, images in splits.items()
            if len(images) and not (split == "val" and host.algorithm.knows_val(label))
        }
        for split, measured in scores.items():
            metrics += [Metric(split, name, value, label) for name, value in measured.items()]
        if label == "untuned" and host.setting.space.choices:
            found.append(_deployed(host, network.arch, scores.get("val", {}).get("accuracy")))
        if ticket.step == "evaluate":
            break
    last = host.setting.rounds if host.last_round is None else host.last_round
    final = ticket.step == "deploy" and ticket.round == last
    if final and network is not None and host.models is not None:
        _save_model(host.models, host, ticket.client, network)
    return Log(tuple(metrics), tuple(found))


def _trained_labels(client: Client) -> Tensor:
    return client.train.labels[client.train.index].unique()


def _tune(host: ClientHost, client: Client, message: Message) -> Log:
    """Test a network on the client's data, then the same tuned, all of it.

    Nothing here knows whose network it is: of the same network comes the same.
    """
    network = learn.network(client, message.tensors, tuple(message.info["arch"]))
    if not any(is_statistic(name) for name in message.tensors):
        learn.recalibrate(network, client.train)
    how = replace(host.algorithm, finetune_epochs=message.info["epochs"])
    metrics = [
        Metric("test", "accuracy", learn.evaluate(network, client.test)["accuracy"], label)
        for label, network in how.tune(client, network)
    ]
    return Log(tuple(metrics))


def _deployed(host: ClientHost, arch: Arch, score: float | None) -> UsedArch:
    """Say which architecture a client would use, and what it costs."""
    space, task, how = host.setting.space, host.setting.task, host.algorithm
    prices = cost.prices(space, arch, task, how.batch, how.optimizer)
    return UsedArch(arch, score, prices, "deployed", idle_genes(space, arch))


def _save_model(models: Path, host: ClientHost, client: int, network: Network) -> None:
    task, space = host.setting.task, host.setting.space
    about = {
        "space": {"name": registry.describe("space", space)["name"], **asdict(space)},  # pyright: ignore[reportArgumentType]
        "arch": list(network.arch),
        "choices": [c.name for c in space.choices],
        "shape": list(task.shape),
        "classes": list(host.federation.classes),
        "mean": list(host.federation.mean),
        "std": list(host.federation.std),
    }
    write_model(model_folder(models, client), about, network.weights())


@contextmanager
def _seeded(key: int, device: str) -> Iterator[None]:
    """Give what draws from torch's global generator (dropout) the step's own key."""
    cuda = []
    if device.startswith("cuda"):
        cuda = [torch.device(device).index or 0]
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(key)
        yield


@contextmanager
def _read_only(message: Message) -> Iterator[None]:
    """Raise if a step wrote into what the server sent."""
    before = {name: tensor._version for name, tensor in message.tensors.items()}
    yield
    for name, tensor in message.tensors.items():
        if tensor._version != before[name]:
            raise RuntimeError(
                f"the algorithm wrote into the received tensor {name!r}: copy it first"
            )
