"""Where and how numbers are computed: the device, one thread, repeatable kernels."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.backends import cudnn

from fedtailor.core.errors import UserError

Device: TypeAlias = Literal["auto", "cpu", "cuda"]


def cores() -> int:
    """Return how many cores this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: sums must not depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def reproducible(device: str) -> Iterator[None]:
    """Compute by one thread and repeatable kernels; leave torch's generators as they were."""
    cuda = [torch.device(device)] if device.startswith("cuda") else []
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with one_thread(), torch.random.fork_rng(devices=cuda):
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def is_finite(tensor: Tensor) -> bool:
    """Tell whether all of a tensor is finite; many times faster than asking entry by entry."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(extreme.item()) for extreme in torch.aminmax(tensor.detach()))


def device_of(wanted: Device, key: str = "engine.device") -> str:
    """Return the device that training uses, by what the user wrote under some key."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UserError(f"{key}: torch sees no CUDA device here; use cpu or auto")
    return "cuda" if there and wanted != "cpu" else "cpu"
