"""A trained supernet as a file: what `space.init` takes, and what `fedtailor pretrain` writes.

It has the supernet's parameters by name and batch norm's statistics. Training keeps none of those,
so they are measured afterwards: each entry is the mean over architectures that have it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch

from fedtailor.core.compute import reproducible
from fedtailor.core.files import whole_file
from fedtailor.core.rng import rng_for, seed_for
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import Examples, Tensors
from fedtailor.networks.initial import unmeasured
from fedtailor.networks.network import Network, pick
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import Store, full_shapes
from fedtailor.pretrain.resumable import OnProgress
from fedtailor.search import genes
from fedtailor.training.evaluate import recalibrate
from fedtailor.training.merge import Part, merge

RANDOM = 32  # architectures that measure statistics, beside those that cover the space
IMAGES = 512  # training images that they see


def write_supernet(
    path: Path, store: Store, examples: Examples, seed: int, progress: OnProgress | None = None
) -> None:
    """Write a supernet's weights with statistics that some of the examples have in it."""
    measured = measure_statistics(store, examples, seed, progress)
    with whole_file(path) as part:
        safetensors.torch.save_file(store.copy() | measured, part)


def measure_statistics(
    store: Store, examples: Examples, seed: int, progress: OnProgress | None = None
) -> Tensors:
    """Return batch norm's statistics of the whole supernet; its weights stand still.

    Args:
        store: the supernet, which keeps no statistics itself.
        examples: what images are drawn from.
        seed: of the images and architectures that are drawn.
        progress: told the number of architectures done and of all.
    """
    full = full_shapes(store.space, store.task, statistics=True)
    first = {name: unmeasured(name, shape) for name, shape in full.items() if is_statistic(name)}
    order = torch.randperm(len(examples), generator=rng_for(seed, "statistics", "images"))
    few = replace(examples, index=examples.index[order[:IMAGES]])
    archs = _architectures(store.space, seed) if first else []

    def parts() -> Iterator[Part]:
        for done, arch in enumerate(archs, 1):
            yield Part(_statistics_of(store, arch, few))
            if progress is not None:
                progress(done, len(archs))

    with reproducible(store.device):
        torch.manual_seed(seed_for(seed, "statistics"))  # for operations that are noise
        return merge(first, parts())


def _architectures(space: SearchSpace, seed: int) -> list[Arch]:
    """Return architectures that have every entry between them, and random ones, each once."""
    drawn = genes.sample_many(space, RANDOM, rng_for(seed, "statistics", "archs"))
    return list(dict.fromkeys([*(space.repair(arch) for arch in space.cover()), *drawn]))


def _statistics_of(store: Store, arch: Arch, examples: Examples) -> Tensors:
    """Return what one architecture's batch norms see of the images."""
    network = Network(store.bind(arch), store.space, store.task, arch, store.device)
    recalibrate(network, examples)
    return pick(network.weights(), is_statistic)
