"""Binding and training a subnet takes memory in proportion to the subnet, not to the supernet.

For the smallest, the middle and the largest architecture of mobilenetv3 at full width: a process of
its own builds the supernet's store, then binds the architecture and trains it for three steps with
momentum, two images to a batch, so that weights are what counts. `grown_mb` is by how much its
resident memory grows from before binding to after training; torch's own start-up is paid before, by
a network of 8 channels. `ratio` is that growth per byte of the subnet's parameters: gradient and
momentum make about 2. A copy of the supernet would show as 26 MB in the smallest.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

from fedtailor.core.space import Task
from fedtailor.core.types import Setting
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.training.optimise import SupernetOptimizer

TASK = Task((3, 32, 32), 10)
WHICH = ("smallest", "middle", "largest")
STEPS = 3


def resident() -> int:
    """Return the resident memory of this process now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def grown(store: Store, which: str) -> int:
    """Return by how many bytes the process has grown after binding and training."""
    arch = getattr(store.space, which)()
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(2, *TASK.shape, generator=rng)
    labels = torch.zeros(2, dtype=torch.int64)
    before = resident()
    optimizer = SupernetOptimizer(store)
    most = 0
    for _ in range(STEPS):
        model = store.bind(arch)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step([model], 0.01)
        most = max(most, resident() - before)
    return most


def child(which: str) -> None:
    torch.set_num_threads(1)
    tiny = MobileNetV3(width=0.01, dropout=0.0)
    warm = Store(tiny, TASK, initial_supernet(Setting(TASK, tiny, 1, 0)))
    grown(warm, which)
    space = MobileNetV3(dropout=0.0)
    store = Store(space, TASK, initial_supernet(Setting(TASK, space, 1, 0)))
    print(grown(store, which))


def main() -> None:
    space = MobileNetV3(dropout=0.0)
    supernet = 4 * sum(w.numel() for w in initial_supernet(Setting(TASK, space, 1, 0)).values())
    result: dict[str, object] = {"name": "supernet_memory", "supernet_mb": round(supernet / 1e6, 1)}
    ratios = []
    for which in WHICH:
        command = [sys.executable, "-m", "benchmarks.supernet_memory", which]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        own = 4 * cost.parameters(space, getattr(space, which)(), TASK)
        ratios.append(int(found.stdout) / own)
        result[which] = {
            "subnet_mb": round(own / 1e6, 1),
            "grown_mb": round(int(found.stdout) / 1e6, 1),
            "ratio": round(ratios[-1], 2),
        }
        print(which, result[which], flush=True)
    result["spread"] = round(max(ratios) / min(ratios), 2)
    print(json.dumps(result))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1])
    else:
        main()
