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
from torch import nn

from fedtailor.algorithms._base import check_sends, state_types
from fedtailor.core import codec
from fedtailor.core.rng import seed_for
from fedtailor.core.space import Arch
from fedtailor.core.types import (
    NEVER,
    Client,
    Found,
    Log,
    Message,
    Metric,
    Reply,
)
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.networks import cost
from fedtailor.runs.folder import state_file
from fedtailor.training import learn


def perform(host: ClientHost, ticket: Ticket, message: Message) -> Done:
    """Do a client's step."""
    began = time.perf_counter()
    client = host.client(ticket)
    key = seed_for(host.setting.seed, ticket.round, ticket.client, ticket.step)
    with _seeded(key, host.device), _read_only(message):
        own = _read_state(host, ticket, client)
        if ticket.step == "train":
            own, reply = host.algorithm.train(client, own, message)
            check_sends(host.algorithm.sends, message, reply.message)
            if own is not None:
                codec.write(host.states / state_file(ticket.client, ticket.round), own)
        else:
            reply = Reply(log=_evaluate(host, ticket, client, own, message))
    seconds = time.perf_counter() - began
    stateful = ticket.step == "train" and own is not None
    return Done(_as_over_a_wire(reply), client.meter.macs, seconds, stateful)


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


def _evaluate(site: ClientHost, ticket: Ticket, client: Client, own: Any, message: Message) -> Log:
    metrics: list[Metric] = []
    found: list[Found] = []
    classes = site.setting.task.classes
    model = None
    for label, model in site.algorithm.deploy(client, own, message):
        if not metrics and label != "untuned":
            raise ValueError(f'the first model that deploy yields must be "untuned", not {label!r}')
        for split, examples in (("val", client.val), ("test", client.test)):
            scores = learn.evaluate(model, examples, classes, site.device)
            metrics += [Metric(split, f"{label}/{name}", value) for name, value in scores.items()]
        if label == "untuned" and site.setting.space.choices:
            found.append(_deployed(site, learn.arch_of(model), metrics[0].value))
        if ticket.step == "evaluate":
            break
    final = ticket.step == "deploy" and ticket.round == site.setting.rounds
    if final and model is not None and site.models is not None:
        _save_model(site.models, site, ticket.client, model)
    return Log(tuple(metrics), tuple(found))


def _deployed(site: ClientHost, arch: Arch, score: float) -> Found:
    """Say which architecture a client would use, and what it costs."""
    space, task, how = site.setting.space, site.setting.task, site.algorithm
    memory = cost.training_memory(space, arch, task, how.batch, how.optimizer)
    prices = {
        "parameters": float(cost.parameters(space, arch, task)),
        "macs": float(cost.forward_macs(space, arch, task)),
        "memory_mb": memory / cost.MIB,
    }
    return Found(arch, score, prices, "deployed")


def _save_model(models: Path, site: ClientHost, client: int, model: nn.Module) -> None:
    folder = models / f"{client:03d}"
    folder.mkdir(parents=True, exist_ok=True)
    task = site.setting.task
    about = {
        "arch": list(learn.arch_of(model)),
        "choices": [c.name for c in site.setting.space.choices],
        "shape": list(task.shape),
        "classes": list(site.federation.classes),
        "mean": list(site.federation.mean),
        "std": list(site.federation.std),
    }
    (folder / "arch.json").write_text(json.dumps(about, indent=1) + "\n")
    safetensors.torch.save_file(learn.weights_of(model), folder / "weights.safetensors")


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
