"""Merging what clients trained into the server's weights."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from fedtailor.types import Tensors


@dataclass(frozen=True)
class Part:
    """One client's trained weights (some or all names of the server's) and how much they count."""

    weights: Tensors
    weight: float


def merge(weights: Tensors, parts: Iterable[Part]) -> Tensors:
    """Return w + sum(weight * (trained - w)) / sum(weight), name by name.

    In delta form: a merge of untouched weights is the identity to the bit, and so is that of a
    name that nobody trained. Parts are read once, one at a time, in the order given.
    """
    sums: Tensors = {}
    totals: dict[str, float] = {}
    for part in parts:
        for name, trained in part.weights.items():
            delta = trained - weights[name]
            if name in sums:
                sums[name].add_(delta, alpha=part.weight)
            else:
                sums[name] = delta.mul_(part.weight)
            totals[name] = totals.get(name, 0.0) + part.weight
    moved = {name: torch.add(weights[name], total / totals[name]) for name, total in sums.items()}
    return weights | moved
