"""One round of PerFedRLNAS in the paper's setting, and where its time goes.

100 clients with 600 training images, 5 of them in a round, 5 epochs, batch 32, 32 pixels, search
spaces at full width. Process CPU seconds, one thread, made-up images. `server_share` is what the
server does (drawing, cutting, merging, policies) of the whole round; the floor is the same training
of the same subnets by static twins in stock PyTorch, scaled up from a few steps. `hours_1500` is
what 1,500 such rounds take on two cores: training is spread over both, the server's work is not.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import TypeVar

import torch
from torch.nn import functional as F

from benchmarks.twins.ours import twin_of
from fedtailor.algorithms.perfedrlnas import PerFedRLNAS, Searching
from fedtailor.core import codec, registry
from fedtailor.core.space import Arch, Task
from fedtailor.core.types import Augment, ClientInfo, Message, Result, Server, Setting
from fedtailor.data.federation import Federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform
from fedtailor.experiment.rounds import draw_cohort
from fedtailor.search import policy
from fedtailor.training.merge import merge, weighed

T = TypeVar("T")
CLIENTS, COHORT, EPOCHS, BATCH, ROUNDS = 100, 5, 5, 32, 1500
IMAGES = (600, 100, 600)  # of a client: train, val, test
POOL = 5000  # images that all clients draw from
TASK = Task((3, 32, 32), 10)
TWIN_STEPS, WARM_STEPS = 6, 2
CORES = 2


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the CPU seconds of some work, and what it gave."""
    began = process_time()
    found = work()
    return process_time() - began, found


def federation() -> Federation:
    """Make 100 clients of random images."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (POOL, *TASK.shape), generator=rng, dtype=torch.uint8)
    labels = torch.randint(TASK.classes, (POOL,), generator=rng)
    rows = torch.cat([torch.randperm(POOL, generator=rng)[: sum(IMAGES)] for _ in range(CLIENTS)])
    ends = torch.tensor([0, *IMAGES]).cumsum(0)
    bounds = ends + sum(IMAGES) * torch.arange(CLIENTS)[:, None]
    names, scale = tuple(map(str, range(TASK.classes))), (0.5, 0.5, 0.5)
    augment = Augment(crop=4, flip=True)
    return Federation(images, labels, rows, bounds, names, scale, scale, augment, CLIENTS, 0)


def plain_s(setting: Setting, arch: Arch, message: Message) -> float:
    """Return the seconds of a client's training by a static twin, from a few of its steps."""
    twin = twin_of(setting.space, arch, TASK, message.tensors).train()
    optimizer = torch.optim.SGD(twin.parameters(), 0.05, momentum=0.9)
    rng = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH, *TASK.shape, generator=rng)
    labels = torch.randint(TASK.classes, (BATCH,), generator=rng)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(twin(images), labels).backward()
        optimizer.step()

    times = [timed(step)[0] for _ in range(TWIN_STEPS)][WARM_STEPS:]
    return sum(times) / len(times) * EPOCHS * IMAGES[0] / BATCH


def measure(name: str, folder: Path) -> dict[str, float]:
    """Do one round of a search space's default preset."""
    algorithm = PerFedRLNAS(epochs=EPOCHS, batch=BATCH)
    setting = Setting(TASK, registry.find("space", name)(), ROUNDS, 0)
    clients = tuple(ClientInfo(i, IMAGES[0]) for i in range(CLIENTS))
    host = ClientHost(algorithm, setting, federation(), clients, folder, None)
    server, space = Server(setting, 1, clients), setting.space
    cohort = draw_cohort(clients, COHORT, 0, 1)
    state = algorithm.server_init(server)
    drawing_s, _ = timed(lambda: [_draw(algorithm, server, state, info) for info in cohort])
    configuring_s, messages = timed(lambda: algorithm.configure(server, state, cohort))
    done: list[tuple[float, Done]] = []
    twins_s = 0.0
    for info in cohort:
        message = messages[info.id]
        done.append(timed(lambda m=message, i=info: perform(host, Ticket("train", i.id, 1), m)))
        arch = space.repair(tuple(message.info["genes"]))
        twins_s += plain_s(setting, arch, message)
        print(f"{name} client {info.id}: {done[-1][0]:.1f} CPU s", flush=True)
    results = [
        Result(info, messages[info.id].info, one.reply.message, 1.0, 0)
        for info, (_, one) in zip(cohort, done, strict=True)
    ]
    parts = [weighed("count", r.message.tensors, r.client.examples) for r in results]
    merging_s, _ = timed(lambda: merge(state.weights, parts))
    aggregating_s, state = timed(lambda: algorithm.aggregate(server, state, results))
    writing_s, _ = timed(lambda: codec.write(folder / "state.safetensors", state))
    training_s = sum(seconds for seconds, _ in done)
    server_s = configuring_s + aggregating_s
    return {
        "round_s": training_s + server_s,
        "training_s": training_s,
        "draw_s": drawing_s,
        "cut_s": configuring_s - drawing_s,
        "merge_s": merging_s,
        "policy_s": max(0.0, aggregating_s - merging_s),
        "checkpoint_s": writing_s,
        "server_share": server_s / (training_s + server_s),
        "floor_s": twins_s,
        "speedup": twins_s / training_s,
        "hours_1500": ROUNDS * (training_s / CORES + server_s + writing_s) / 3600,
    }


def _draw(algorithm: PerFedRLNAS, server: Server, state: Searching, info: ClientInfo) -> Arch:
    alphas = algorithm.alphas(server.setting.space, state, info.id)
    return policy.draw(server.setting.space, alphas, server.rng(f"policy/{info.id}"))


def main() -> None:
    torch.set_num_threads(1)
    result: dict[str, object] = {"name": "paper_round"}
    for name in ("mobilenetv3_plato", "mobilenetv3"):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(name, Path(folder))
        result[name] = {key: float(f"{value:.4g}") for key, value in found.items()}
        print(name, json.dumps(result[name]), flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
