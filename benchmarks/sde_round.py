"""One client's round of PerFedSDE-NAS at the paper's size, by its parts, against stock networks.

`mobilenetv3` at full width, 32 pixels: a population of 135 on 100 images, 5 epochs of 500, 5 times
100 generated architectures, 50 offspring. Images are made up. A client's second round counts: its
population is what a search left, and modules were built. CPU seconds of one thread; `round_s` has
all that a round does, also what no part has, such as tests for the log and packing the update.

The floor evaluates as many architectures and trains as many steps with static twins in stock
PyTorch, each built, loaded and run by itself; it draws no batches and brings no weights back, and
the same generator's time is added. It is timed on some networks and extrapolated.
`speedup_networks_only` is against the floor without building and loading.

`beside_wall` is what generating adds to the wall time of a round with a core to spare: the same
round against one that is given the same offspring for nothing, the quickest of each.

Then the `cpu` preset with 375 and 125 images, two iterations of 50 candidates, for populations of
60 and 135: medians of the rounds 2 to 4. The last line is JSON.
"""

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.twins.ours import twin_of
from fedtailor.algorithms.perfedsde import PerFedSDENAS, Search
from fedtailor.core.space import Arch, Task
from fedtailor.core.stopwatch import Stopwatch
from fedtailor.core.types import Augment, Client, ClientInfo, Examples, Message, Server, Setting
from fedtailor.data.batches import batch_count
from fedtailor.networks.store import Store
from fedtailor.runs.config import make_space
from fedtailor.search.evolution import Population

TASK = Task((3, 32, 32), 10)
BATCH, TRAIN, VAL = 32, 500, 100
TRIED = 12  # networks of the floor that are timed in evaluation; in training, the archive's
REPEATS = 3  # of each wall time


@dataclass(frozen=True)
class Noting(PerFedSDENAS):
    """Notes what it proposes, by iteration; or proposes what is noted, which takes no time."""

    notes: dict[int, tuple[list[Arch], list[float] | None]] = field(default_factory=dict)
    replays: bool = False

    def _offspring(
        self,
        client: Client,
        own: Search,
        population: Population,
        known: Population,
        iteration: int,
        watch: Stopwatch,
    ) -> tuple[list[Arch], list[float] | None]:
        if not self.replays:
            found = super()._offspring(client, own, population, known, iteration, watch)
            self.notes[iteration] = found
        return self.notes[iteration]


def examples(count: int, seed: int) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, *TASK.shape), generator=rng, dtype=torch.uint8)
    labels = torch.randint(TASK.classes, (count,), generator=rng)
    return Examples(images, labels, torch.arange(count), (0.5,) * 3, (0.25,) * 3, Augment(4, True))


def client_of(setting: Setting, train: int, val: int, round: int, spare: int = 0) -> Client:
    plain = replace(examples(val, 2), augment=Augment())
    info = ClientInfo(0, train)
    return Client(setting, info, round, examples(train, 1), plain, plain, spare=spare)


def supernet(how: PerFedSDENAS, setting: Setting, examples: int) -> Message:
    server = Server(setting, 1, (ClientInfo(0, examples),))
    return how.serve(server, how.server_init(server), server.clients[0])


def rounds(
    how: PerFedSDENAS, setting: Setting, message: Message, train: int, val: int
) -> Iterator[tuple[dict[str, float], Search]]:
    """Yield what each of a client's rounds took, by parts, and what it ended with."""
    own = how.client_init(client_of(setting, train, val, 1))
    for round in range(1, setting.rounds + 1):
        client = client_of(setting, train, val, round)
        began = time.process_time()
        own, reply = how.train(client, own, message)
        took = {"round_s": time.process_time() - began}
        yield took | {f"{spent.part}_s": spent.seconds for spent in reply.log.times}, own


def one_by_one(store: Store, archs: list[Arch], use: Callable[[nn.Module], Any]) -> list[float]:
    """Return CPU seconds of a stock network, on average: with building and loading, and without."""
    use(twin_of(store.space, archs[0], TASK, store.cut(archs[0])).train())  # a first one is slow
    whole, used = time.process_time(), 0.0
    for arch in archs:
        twin = twin_of(store.space, arch, TASK, store.cut(arch)).train()
        began = time.process_time()
        use(twin)
        used += time.process_time() - began
    return [(time.process_time() - whole) / len(archs), used / len(archs)]


def floor(how: PerFedSDENAS, setting: Setting, own: Search, message: Message) -> list[float]:
    """Return CPU seconds of a round's evaluations and steps, with building and without."""
    store, images = Store(setting.space, TASK, message.tensors), torch.randn(VAL, *TASK.shape)
    batch, labels = torch.randn(BATCH, *TASK.shape), torch.randint(TASK.classes, (BATCH,))

    @torch.inference_mode()
    def test(twin: nn.Module) -> None:
        twin(images)

    def step(twin: nn.Module) -> None:
        optimizer = torch.optim.SGD(twin.parameters(), how.lr, momentum=how.momentum)
        F.cross_entropy(twin(batch), labels).backward()
        optimizer.step()

    archs = own.population.archs
    spread = [archs[n * len(archs) // TRIED] for n in range(TRIED)]
    tests = len(archs) + how.iterations * how.offspring
    steps = how.iterations * how.epochs * batch_count(TRAIN, BATCH)
    tested = one_by_one(store, spread, test)
    trained = one_by_one(store, list(own.archive), step)
    return [tests * t + steps * s for t, s in zip(tested, trained, strict=True)]


def beside_wall(how: PerFedSDENAS, setting: Setting, own: Search, message: Message) -> float:
    """Return by how much generation beside training makes a round longer, as a share."""
    noting, walls = Noting(**vars(how)), {False: math.inf, True: math.inf}
    for one in (noting, replace(noting, replays=True)) * REPEATS:
        client = client_of(setting, TRAIN, VAL, 2, spare=1)
        began = time.perf_counter()
        one.train(client, own, message)
        walls[one.replays] = min(walls[one.replays], time.perf_counter() - began)
    return walls[False] / walls[True] - 1


def main() -> None:
    torch.set_num_threads(1)
    setting = Setting(TASK, make_space({"name": "mobilenetv3"}).at(TASK), 2, 0)
    how = PerFedSDENAS(batch=BATCH)
    message = supernet(how, setting, TRAIN)
    (_, own), (took, _) = rounds(how, setting, message, TRAIN, VAL)
    print(json.dumps(took), flush=True)
    result: dict[str, float] = dict(took)
    whole, networks_only = (took["generation_s"] + s for s in floor(how, setting, own, message))
    result |= {
        "floor_s_extrapolated": whole,
        "speedup": whole / took["round_s"],
        "speedup_networks_only": networks_only / took["round_s"],
        "beside_wall": beside_wall(how, setting, own, message),
    }
    small = replace(setting, space=make_space({"name": "mobilenetv3", "preset": "cpu"}).at(TASK))
    for population in (60, 135):
        less = replace(how, iterations=2, population=population, candidates=50)
        several = rounds(less, replace(small, rounds=4), supernet(less, small, 375), 375, 125)
        took = [took["round_s"] for took, _ in several]
        result[f"cpu_{population}_s"] = statistics.median(took[1:])
    print(json.dumps({"name": "sde_round"} | {k: round(v, 3) for k, v in result.items()}))


if __name__ == "__main__":
    main()
