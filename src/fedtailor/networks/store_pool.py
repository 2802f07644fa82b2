"""Stores that were built before, handed out again: a module is built once in a process."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedtailor.core.space import SearchSpace, Task
from fedtailor.core.types import Tensors
from fedtailor.networks.store import Store

KEPT_KINDS = 4  # whose stores are kept, of each as many as were held at once
Kinds = frozenset[tuple[str, torch.Size, torch.dtype]]


@contextmanager
def store_of(
    space: SearchSpace, task: Task, weights: Tensors, device: str = "cpu"
) -> Iterator[Store]:
    """Hand out a store that holds `weights`, which are copied; with its context it is given back.

    It may have been held by others, of whom nothing is left but the modules they had built. Two
    that are held at once are two. What is to outlive the context must be copied out of it: by
    `copy` or `cut`.
    """
    kinds = frozenset((name, weight.shape, weight.dtype) for name, weight in weights.items())
    idle = _shelf(space, task, device, kinds)
    if idle:
        store = idle.pop()
        store.load(weights)
    else:
        store = Store(space, task, weights, device)
    try:
        yield store
    finally:  # whatever happened: it is overwritten before anyone sees it again
        idle.append(store)


@functools.lru_cache(maxsize=KEPT_KINDS)
def _shelf(space: SearchSpace, task: Task, device: str, kinds: Kinds) -> list[Store]:
    """Keep the stores of a kind that nobody holds."""
    return []
