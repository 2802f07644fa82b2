"""Testing a population of architectures, against one network at a time in stock PyTorch.

135 architectures of mobilenetv3 at full width on 100 images of 32 pixels, batch statistics. A gene
of an architecture is that of a common parent with the share given (60, 80 and 95 %), else random.
The floor builds each architecture's static twin in PyTorch's default layout, loads its weights and
runs it; `twins_only` is the floor without building and loading. CPU time, one thread; each side
once per share, since it takes long. `speedup` is at 80 % equal genes.
"""

import json
import time

import torch

from benchmarks.twins.ours import twin_of
from fedtailor.core.space import Arch, Task
from fedtailor.core.types import Examples, Setting
from fedtailor.data.batches import batch
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store
from fedtailor.search import genes
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.training.population import walk

TASK = Task((3, 32, 32), 10)
COUNT, IMAGES = 135, 100
SHARES = (0.60, 0.80, 0.95)


def population(space: MobileNetV3, share: float) -> list[Arch]:
    """Draw architectures whose genes are a parent's with a certain share."""
    rng = torch.Generator().manual_seed(int(100 * share))
    parent = genes.sample(space, rng)
    drawn = []
    for _ in range(COUNT):
        other = genes.sample(space, rng)
        same = (torch.rand(len(parent), generator=rng) < share).tolist()
        mixed = tuple(p if s else o for p, o, s in zip(parent, other, same, strict=True))
        drawn.append(space.repair(mixed))
    return drawn


def compare(store: Store, archs: list[Arch], examples: Examples) -> tuple[float, float, float]:
    """Return the seconds of the floor, of its networks alone, and of ours."""
    images = batch(examples, torch.arange(IMAGES), None, "cpu")[0].contiguous()
    began = time.process_time()
    floor, networks = [], 0.0
    for arch in archs:
        twin = twin_of(store.space, arch, TASK, store.cut(arch)).train()
        entered = time.process_time()
        with torch.inference_mode():
            floor.append(twin(images))
        networks += time.process_time() - entered
    floor_s = time.process_time() - began
    began = time.process_time()
    ours = dict(walk(store, archs, examples))
    ours_s = time.process_time() - began
    together = torch.stack([ours[number] for number in range(len(archs))])
    assert torch.allclose(together, torch.stack(floor), rtol=1e-3, atol=1e-3), "other results"
    return floor_s, networks, ours_s


def main() -> None:
    torch.set_num_threads(1)
    space, rng = MobileNetV3(dropout=0.0), torch.Generator().manual_seed(0)
    images = torch.randint(256, (IMAGES, *TASK.shape), generator=rng).to(torch.uint8)
    labels = torch.randint(TASK.classes, (IMAGES,), generator=rng)
    examples = Examples(images, labels, torch.arange(IMAGES), (0.5,) * 3, (0.25,) * 3)
    weights = initial_supernet(Setting(TASK, space, 1, 0))
    result: dict[str, object] = {"name": "population"}
    for share in SHARES:
        store = Store(space, TASK, weights)  # its modules have to be built, as the twins have
        floor, networks, ours = compare(store, population(space, share), examples)
        percent = round(100 * share)
        print(
            f"{percent} % equal genes: {floor:.2f} / {ours:.2f} s = {floor / ours:.2f}", flush=True
        )
        if percent == 80:
            result |= {"floor_s": round(floor, 3), "ours_s": round(ours, 3)}
            result["speedup"] = round(floor / ours, 3)
        result[f"speedup_{percent}"] = round(floor / ours, 3)
        result[f"twins_only_{percent}"] = round(networks / ours, 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
