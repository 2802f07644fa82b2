"""Where clients live in a simulation: their data, private states, and how a step is done."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fedtailor.algorithms._base import Algorithm, state_types
from fedtailor.algorithms._replies import check_reply
from fedtailor.core import codec
from fedtailor.core.rng import seed_for
from fedtailor.core.space import Arch
from fedtailor.core.types import (
    NEVER,
    Client,
    ClientInfo,
    Log,
    Message,
    Metric,
    Reply,
    Setting,
    UsedArch,
)
from fedtailor.data.federation import Federation
from fedtailor.engines._base import Done, Ticket
from fedtailor.networks import cost
from fedtailor.networks.network import Network
from fedtailor.runs.folder import state_file
from fedtailor.search.policy import idle_genes
from fedtailor.training import learn


@dataclass(frozen=True)
class Site:
    """All that is needed to do any client's step."""

    algorithm: Algorithm[Any, Any]
    setting: Setting
    federation: Federation
    clients: tuple[ClientInfo, ...]
    states: Path  # where private states are kept
    models: Path | None  # where deployed models go
    device: str = "cpu"

    def client(self, ticket: Ticket) -> Client:
        """Bring together what the client may look at in this step."""
        train, val, test = (
            self.federation.examples(ticket.client, split) for split in ("train", "val", "test")
        )
        info = self.clients[ticket.client]
        return Client(self.setting, info, ticket.round, train, val, test, self.device)


def perform(site: Site, ticket: Ticket, message: Message) -> Done:
    """Do a client's step."""
    began = time.perf_counter()
    client = site.client(ticket)
    key = seed_for(site.setting.seed, ticket.round, ticket.client, ticket.step)
    digest = None
    with _seeded(key, site.device), _read_only(message):
        own = _read_state(site, ticket, client)
        if ticket.step == "train":
            own, reply = site.algorithm.train(client, own, message)
            check_reply(site.algorithm.sends(), message, reply.message)
            if own is not None:
                codec.write(site.states / state_file(ticket.client, ticket.round), own)
                digest = codec.digest(own)
        else:
            reply = Reply(log=_evaluate(site, ticket, client, own, message))
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


def _read_state(site: Site, ticket: Ticket, client: Client) -> Any:
    if ticket.version == NEVER:
        return site.algorithm.client_init(client)
    _, kind = state_types(site.algorithm)
    return codec.read(kind, site.states / state_file(ticket.client, ticket.version))


def _evaluate(site: Site, ticket: Ticket, client: Client, own: Any, message: Message) -> Log:
    metrics: list[Metric] = []
    found: list[UsedArch] = []
    network = None
    for label, network in site.algorithm.deploy(client, own, message):
        if not metrics and label != "untuned":
            raise ValueError(f'the first model that deploy yields must be "untuned", not {label!r}')
        for split, examples in (("val", client.val), ("test", client.test)):
            scores = learn.evaluate(network, examples)
            metrics += [Metric(split, name, value, label) for name, value in scores.items()]
        if label == "untuned" and site.setting.space.choices:
            found.append(_deployed(site, network.arch, metrics[0].value))
        if ticket.step == "evaluate":
            break
    final = ticket.step == "deploy" and ticket.round == site.setting.rounds
    if final and network is not None and site.models is not None:
        _save_model(site.models, site, ticket.client, network)
    return Log(tuple(metrics), tuple(found))


def _deployed(site: Site, arch: Arch, score: float) -> UsedArch:
    """Say which architecture a client would use, and what it costs."""
    space, task, how = site.setting.space, site.setting.task, site.algorithm
    prices = cost.prices(space, arch, task, how.batch, how.optimizer)
    return UsedArch(arch, score, prices, "deployed", idle_genes(space, arch))


def _save_model(models: Path, site: Site, client: int, network: Network) -> None:
    folder = models / f"{client:03d}"
    folder.mkdir(parents=True, exist_ok=True)
    task = site.setting.task
    about = {
        "arch": list(network.arch),
        "choices": [c.name for c in site.setting.space.choices],
        "shape": list(task.shape),
        "classes": list(site.federation.classes),
        "mean": list(site.federation.mean),
        "std": list(site.federation.std),
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
