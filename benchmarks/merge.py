"""Merging subnets into a supernet, against copying the same bytes tensor by tensor.

Five random architectures of mobilenetv3 at full width, each a client's trained weights; rule
`count`. CPU time, one thread, interleaved repeats, lowest of each. `speedup` is floor / ours.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from fedtailor.core.space import Task
from fedtailor.core.types import Setting
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import cut, shapes
from fedtailor.search import genes
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.training.merge import Part, merge

TASK = Task((3, 32, 32), 10)
CLIENTS = 5


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    kept = work()
    spent = time.process_time() - began
    del kept
    return spent


def main() -> None:
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    space, rng = MobileNetV3(), torch.Generator().manual_seed(0)
    server = initial_supernet(Setting(TASK, space, 1, 0))
    archs = genes.sample_many(space, CLIENTS, rng)
    trained = [
        {n: w + 0.01 for n, w in cut(server, shapes(space, arch, TASK)).items()} for arch in archs
    ]

    def floor() -> Any:
        return [[weight.clone() for weight in weights.values()] for weights in trained]

    def ours() -> Any:
        return merge(server, (Part(weights) for weights in trained))

    times = [(seconds(floor), seconds(ours)) for _ in range(repeats)]
    floor_s, ours_s = min(t[0] for t in times), min(t[1] for t in times)
    result = {
        "name": "merge",
        "floor_s": round(floor_s, 5),
        "ours_s": round(ours_s, 5),
        "speedup": round(floor_s / ours_s, 3),
        "megabytes": round(sum(w.nbytes for ws in trained for w in ws.values()) / 1e6, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
