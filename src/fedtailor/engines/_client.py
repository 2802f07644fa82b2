"""One client's step: the same wherever it is done."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fedtailor.algorithms._base import state_types
from fedtailor.algorithms._replies import check_reply
from fedtailor.core import codec
from fedtailor.core.rng import seed_for
from fedtailor.core.space import Arch
from fedtailor.core.types import (
    NEVER,
    Client,
    Log,
    Message,
    Metric,
    Reply,
    UsedArch,
)
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.networks import cost
from fedtailor.networks.network import Network
from fedtailor.runs.folder import state_file
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
            own, reply = host.algorithm.train(client, own, message)
            check_reply(host.algorithm.sends(), message, reply.message)
            if own is not None:
                codec.write(host.states / state_file(ticket.client, ticket.round), own)
                digest = codec.digest(own)
        else:
            reply = Reply(log=_evaluate(host, ticket, client, own, message))
    seconds = time.perf_counter() - began
    return Done(_as_over_a_wire(reply), client.meter.macs, seconds, digest)


def _as_over_a_wire(reply: Reply) -> Reply:
    """Give a reply the form every engine delivers: tensors of its own, info and log as JSON."""
    tensors = {
        name: t.detach().to("cpu", copy=True).contiguous()
        for name, t in reply.message.tensors.items()
    }
    numbers = [replace(m, value=float(m.value)) for m in reply.log.metrics]
    log = codec.unpack(Log, *codec.pack(replace(reply.log, metrics=tuple(numbers))))
    return Reply(Message(tensors, json.loads(json.dumps(reply.message.info))), log)


def _read_state(host: ClientHost, ticket: Ticket, client: Client) -> Any:
    if ticket.version == NEVER:
        return host.algorithm.client_init(client)
    _, kind = state_types(host.algorithm)
    return codec.read(kind, host.states / state_file(ticket.client, ticket.version))


def _evaluate(host: ClientHost, ticket: Ticket, client: Client, own: Any, message: Message) -> Log:
    metrics: list[Metric] = []
    found: list[UsedArch] = []
    network = None
    for label, network in host.algorithm.deploy(client, own, message):
        if not metrics and label != "untuned":
            raise ValueError(f'the first model that deploy yields must be "untuned", not {label!r}')
        for split, examples in (("val", client.val), ("test", client.test)):
            scores = learn.evaluate(network, examples)
            metrics += [Metric(split, name, value, label) for name, value in scores.items()]
        if label == "untuned" and host.setting.space.choices:
            found.append(_deployed(host, network.arch, metrics[0].value))
        if ticket.step == "evaluate":
            break
    final = ticket.step == "deploy" and ticket.round == host.setting.rounds
    if final and network is not None and host.models is not None:
        _save_model(host.models, host, ticket.client, network)
    return Log(tuple(metrics), tuple(found))


def _deployed(host: ClientHost, arch: Arch, score: float) -> UsedArch:
    """Say which architecture a client would use, and what it costs."""
    space, task, how = host.setting.space, host.setting.task, host.algorithm
    prices = cost.prices(space, arch, task, how.batch, how.optimizer)
    return UsedArch(arch, score, prices, "deployed", idle_genes(space, arch))


def _save_model(models: Path, host: ClientHost, client: int, network: Network) -> None:
    folder = models / f"{client:03d}"
    folder.mkdir(parents=True, exist_ok=True)
    task = host.setting.task
    about = {
        "arch": list(network.arch),
        "choices": [c.name for c in host.setting.space.choices],
        "shape": list(task.shape),
        "classes": list(host.federation.classes),
        "mean": list(host.federation.mean),
        "std": list(host.federation.std),
    }
    (folder / "arch.json").write_text(json.dumps(about, indent=1) + "\n")
    safetensors.torch.save_file(network.weights(), folder / "weights.safetensors")


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
