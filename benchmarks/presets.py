"""What the `cpu` presets cost: a training step of 32 images, and binding a new architecture.

CPU milliseconds, one thread, lowest of repeats; `bind_new_ms` is the mean over random architectures
of a store that has bound ten others before.
"""

import functools
import json

import torch
from torch.nn import functional as F

from benchmarks.subnet_step import LR, TASK, seconds
from fedtailor.core import registry
from fedtailor.core.space import Arch
from fedtailor.core.types import Setting
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store
from fedtailor.search import genes
from fedtailor.training.optimise import SupernetOptimizer

NAMES = ("mobilenetv3", "mobilenetv3_plato", "darts", "nasvit")
REPEATS, WARM, NEW = 20, 10, 20


def step_ms(store: Store, arch: Arch) -> float:
    """Return the milliseconds of a step."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(32, *TASK.shape, generator=rng)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(TASK.classes, (32,), generator=rng)
    optimizer = SupernetOptimizer(store)

    def step() -> None:
        model = store.bind(arch)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step([model], LR)

    return 1e3 * min(seconds(step) for _ in range(REPEATS))


def main() -> None:
    torch.set_num_threads(1)
    result: dict[str, object] = {"name": "presets"}
    for name in NAMES:
        kind = registry.find("space", name)
        space = kind(**kind.presets["cpu"])
        store = Store(space, TASK, initial_supernet(Setting(TASK, space, 1, 0)))
        which = {"smallest": space.smallest(), "middle": space.middle(), "largest": space.largest()}
        found = {key: round(step_ms(store, arch), 1) for key, arch in which.items()}
        archs = genes.sample_many(space, WARM + NEW, torch.Generator().manual_seed(1))
        times = [seconds(functools.partial(store.bind, arch)) for arch in archs]
        found["bind_new_ms"] = round(1e3 * sum(times[WARM:]) / NEW, 1)
        result[name] = found
        print(name, found, flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
