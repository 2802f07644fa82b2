"""A training step and a search of SPIDER's s2 supernet, against a plain network in stock PyTorch.

The plain network has one module for each operation, PyTorch's default layout (NCHW) and the same
weights; outputs are compared. CPU time, one thread, batch 32, interleaved repeats, lowest of each:
at 16 channels, 8 cells, 32 pixels, and with the `cpu` preset. Then one search on 500 images at the
first size: two edges, so four networks that lack an operation, in one walk against one at a time,
each once; decisions are compared. `profile` is what a step of ours spends its time on, by operator.

`python -m benchmarks.spider_step [REPEATS]`
"""

import json
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.twins.darts import Sum
from benchmarks.twins.ours import twin_of
from fedtailor.core.space import Task
from fedtailor.core.types import Client, ClientInfo, Examples, Setting
from fedtailor.data.batches import batch
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store
from fedtailor.search import perturb
from fedtailor.spaces.darts import DARTS
from fedtailor.training import learn
from fedtailor.training.evaluate import EVALUATION_BATCH
from fedtailor.training.fitness import fitness_of_kinds

TASK = Task((3, 32, 32), 10)
BATCH, IMAGES, LR, TOLD = 32, 500, 0.01, 10
SIZES = {
    "paper": DARTS(operations="s2", form="relaxed"),
    "cpu": DARTS(channels=8, cells=3, resolution=16, operations="s2", form="relaxed"),
}
RECIPE = learn.Recipe(lr=LR, weight_decay=1e-3)


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def client_of(space: DARTS) -> Client:
    rng = torch.Generator().manual_seed(1)
    images = torch.randint(256, (IMAGES, *TASK.shape), generator=rng, dtype=torch.uint8)
    labels = torch.randint(TASK.classes, (IMAGES,), generator=rng)
    examples = Examples(images, labels, torch.arange(IMAGES), (0.5,) * 3, (0.25,) * 3)
    setting = Setting(TASK, space, 1, 0, space.largest())
    return Client(setting, ClientInfo(0, IMAGES), 1, examples, examples, examples)


def steps_of(client: Client, space: DARTS) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return a step of the plain network and one of ours; both return their loss."""
    weights = initial_supernet(client.setting)
    examples = learn.Batch(*batch(client.train, torch.arange(BATCH), None, "cpu"))
    twin = twin_of(space, space.largest(), TASK, weights).train()
    network = learn.network(client, weights)
    plain = torch.optim.SGD(twin.parameters(), LR, momentum=0.9, weight_decay=1e-3)
    optimizer = learn.optimizer(network, RECIPE, LR)
    images = examples.images.contiguous()
    with torch.no_grad():
        assert torch.allclose(twin(images), network(examples.images), atol=1e-3), "other outputs"

    def floor() -> Tensor:
        plain.zero_grad()
        loss = F.cross_entropy(twin(images), examples.labels)
        loss.backward()
        plain.step()
        return loss

    def ours() -> Tensor:
        optimizer.zero_grad()
        loss = network.loss(examples)
        loss.backward()
        learn.move(network, optimizer)
        return loss

    return floor, ours


def profile_of(step: Callable[[], object]) -> dict[str, float]:
    """Return the share of time of the operators that take most of it."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    times = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    most = sorted(times, key=times.__getitem__, reverse=True)[:TOLD]
    return {name: round(times[name] / sum(times.values()), 3) for name in most}


def without(twin: nn.Module, edge: int, operation: str) -> list[tuple[Sum, nn.Module]]:
    """Take an operation out of all cells of a kind; return where it was."""
    found = []
    network = twin.get_submodule("1") if isinstance(twin, nn.Sequential) else twin
    for cell in network.get_submodule("cells").children():
        if (cell.stride == 2) == (edge >= 14):
            on_it = list(cell.get_submodule("edges").children())[edge % 14]
            assert isinstance(on_it, Sum)
            found.append((on_it, on_it.pop(operation)))
    return found


def plain_search(
    twin: nn.Module, client: Client, removals: dict[str, tuple[int, str]]
) -> dict[str, tuple[float, float]]:
    """Test the plain network without each operation, one at a time, with batches' statistics."""
    found = {}
    for name, (edge, operation) in removals.items():
        taken, right, total = without(twin, edge, operation), 0, 0.0
        with torch.inference_mode():
            for rows in torch.arange(IMAGES).split(EVALUATION_BATCH):
                images, labels = batch(client.val, rows, None, "cpu")
                logits = twin(images.contiguous())
                right += int((logits.argmax(1) == labels).sum())
                total -= float(F.cross_entropy(logits, labels, reduction="sum"))
        found[name] = (right / IMAGES, total / IMAGES)
        for place, module in taken:
            place[operation] = module
    return found


def search(client: Client, space: DARTS) -> tuple[float, float]:
    """Return the seconds of one search by the plain network and by ours; decisions must agree."""
    weights, arch, rng = initial_supernet(client.setting), space.largest(), torch.Generator()
    questions = perturb.ask(space, arch, 0, rng.manual_seed(2))
    asked = {name: one.without[name] for one in questions for name in one.doubtful}
    edges = {choice.name: edge for edge, choice in enumerate(space.choices)}
    removals = {n: (edges[n.partition("/")[0]], n.partition("/")[2]) for n in asked}
    twin, tables = twin_of(space, arch, TASK, weights).train(), list[perturb.Tested]()
    floor = seconds(lambda: tables.append(plain_search(twin, client, removals)))

    def ours() -> None:
        store = Store(space, TASK, weights)
        kinds = ("accuracy", "likelihood")
        scores = fitness_of_kinds(client, store, list(asked.values()), kinds, client.val)
        tables.append(dict(zip(asked, zip(*scores, strict=True), strict=True)))

    ours_s = seconds(ours)
    for question in questions:
        orders = [perturb.order("accuracy", question.doubtful, table, rng) for table in tables]
        assert question.answer(orders[0]) == question.answer(orders[1]), "other decisions"
    return floor, ours_s


def main() -> None:
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    result: dict[str, object] = {"name": "spider_step"}
    for name, space in SIZES.items():
        client = client_of(space)
        floor, ours = steps_of(client, space)
        times = [(seconds(floor), seconds(ours)) for _ in range(repeats)]
        plain_s, ours_s = (min(column) for column in zip(*times, strict=True))
        print(f"{name}: {1e3 * plain_s:.0f} / {1e3 * ours_s:.0f} ms = {plain_s / ours_s:.2f}")
        result[name] = {"floor_s": plain_s, "ours_s": ours_s, "speedup": plain_s / ours_s}
        result[f"{name}_profile"] = profile_of(ours)
    plain_s, ours_s = search(client_of(SIZES["paper"]), SIZES["paper"])
    result["search"] = {"floor_s": plain_s, "ours_s": ours_s, "speedup": plain_s / ours_s}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
