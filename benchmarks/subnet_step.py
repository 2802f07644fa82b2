"""A training step of a subnet bound to a supernet, against a static twin in stock PyTorch.

CPU time, one thread, batch 32, 32 pixels, stem stride 1, interleaved repeats, lowest of each. The
twin is a network of that one architecture, written by hand, in PyTorch's default layout (NCHW) and
with its own optimiser; ours binds the architecture, computes the gradients and moves the supernet's
entries. `speedup` is the geometric mean over mobilenetv3's architectures (smallest, middle,
largest, five random), `lowest` the worst of them; `darts` and `nasvit` are the means of theirs.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.twins.ours import twin_of
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Setting
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store
from fedtailor.search import genes
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.spaces.nasvit import NASViT
from fedtailor.training.optimise import SupernetOptimizer

TASK = Task((3, 32, 32), 10)
RANDOM = 5
LR = 0.01


def archs_of(space: SearchSpace) -> dict[str, Arch]:
    rng = torch.Generator().manual_seed(0)
    drawn = {f"random {n + 1}": genes.sample(space, rng) for n in range(RANDOM)}
    fixed = {"smallest": space.smallest(), "middle": space.middle(), "largest": space.largest()}
    return fixed | drawn


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(store: Store, arch: Arch, repeats: int) -> tuple[float, float]:
    """Return the seconds of a step of the twin and of ours."""
    rng = torch.Generator().manual_seed(1)
    images = torch.randn(32, *TASK.shape, generator=rng)
    last = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(TASK.classes, (32,), generator=rng)
    twin = twin_of(store.space, arch, TASK, store.cut(arch)).train()
    plain = torch.optim.SGD(twin.parameters(), LR, momentum=0.9)
    optimizer = SupernetOptimizer(store, "sgd", 0.9)

    def floor() -> None:
        plain.zero_grad()
        F.cross_entropy(twin(images), labels).backward()
        plain.step()

    def ours() -> None:
        model = store.bind(arch)
        F.cross_entropy(model(last), labels).backward()
        optimizer.step([model], LR)

    times = [(seconds(floor), seconds(ours)) for _ in range(repeats)]
    return min(t[0] for t in times), min(t[1] for t in times)


def ratios_of(space: SearchSpace, repeats: int) -> tuple[float, float, list[float]]:
    """Return the seconds of all twins' steps, of all of ours, and the ratios."""
    store = Store(space, TASK, initial_supernet(Setting(TASK, space, 1, 0)))
    floor_s = ours_s = 0.0
    ratios = []
    for name, arch in archs_of(space).items():
        floor, ours = compare(store, arch, repeats)
        floor_s, ours_s = floor_s + floor, ours_s + ours
        ratios.append(floor / ours)
        line = f"{type(space).__name__} {name}: {1e3 * floor:.0f} / {1e3 * ours:.0f} ms"
        print(f"{line} = {ratios[-1]:.2f}", flush=True)
    return floor_s, ours_s, ratios


def main() -> None:
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    floor_s, ours_s, ratios = ratios_of(MobileNetV3(dropout=0.0), repeats)
    result = {
        "name": "subnet_step",
        "floor_s": round(floor_s, 4),
        "ours_s": round(ours_s, 4),
        "speedup": round(statistics.geometric_mean(ratios), 3),
        "lowest": round(min(ratios), 3),
    }
    for name, space in (("darts", DARTS()), ("nasvit", NASViT())):
        _, _, others = ratios_of(space, max(3, repeats // 2))
        result[name] = round(statistics.geometric_mean(others), 3)
        result[f"{name}_lowest"] = round(min(others), 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
