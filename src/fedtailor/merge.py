"""Merging what clients trained into the server's weights, and how much each of them counts."""

# Torch has its fast operations on lists of tensors under private names only.
# pyright: reportPrivateImportUsage=false

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedtailor.supernet import Shape, view
from fedtailor.types import Tensors

Rule: TypeAlias = Literal["count", "count_samples", "frequency", "fedavg"]


@dataclass(frozen=True)
class Part:
    """What one client trained: some or all names of the server's, each a window or the whole.

    Args:
        weight: how much it counts; per entry where a client trained some entries more than others.
        everywhere: it counts in every mean, also those of entries it has not (their delta is 0).
    """

    weights: Tensors
    weight: float | Tensors = 1.0
    everywhere: bool = False


def weighed(rule: Rule, weights: Tensors, examples: int, times: float | Tensors = 1.0) -> Part:
    """Make a part that counts as a rule says.

    Args:
        rule: `count`: a mean over the clients that trained an entry; `count_samples`: weighted by
            their examples; `frequency`: by how often they trained it; `fedavg`: by examples, over
            all clients whether they trained the entry or not.
        weights: what the client trained.
        examples: the client's training examples.
        times: how many batches trained each entry; one number where all were trained alike.
    """
    if rule == "fedavg":
        return Part(weights, float(examples), everywhere=True)
    if rule == "frequency":
        return Part(weights, times)
    scale = float(examples) if rule == "count_samples" else 1.0
    if isinstance(times, dict):
        return Part(weights, {name: (count > 0) * scale for name, count in times.items()})
    return Part(weights, scale)


def merge(weights: Tensors, parts: Iterable[Part]) -> Tensors:
    """Return w - sum(weight * (w - trained)) / sum(weight), entry by entry.

    Written with differences, so that a merge of untouched weights is the identity to the bit, and
    so is that of an entry that nobody trained. Parts are read once, one at a time, in the order
    given.
    """
    sums: Tensors = {}
    shares: dict[str, list[tuple[Shape, float | Tensor]]] = {}
    of_all = 0.0
    for part in parts:
        if part.everywhere:
            assert isinstance(part.weight, float)
            of_all += part.weight
        if not part.weights:
            continue
        views = [view(weights[name], trained.shape) for name, trained in part.weights.items()]
        deltas = torch._foreach_sub(views, list(part.weights.values()))
        if isinstance(part.weight, dict):
            torch._foreach_mul_(deltas, [part.weight[name] for name in part.weights])
        elif part.weight != 1.0:
            torch._foreach_mul_(deltas, part.weight)
        for name, delta in zip(part.weights, deltas, strict=True):
            _add(sums, name, delta, weights[name])
            share = 0.0 if part.everywhere else part.weight
            shares.setdefault(name, []).append(
                (tuple(delta.shape), share[name] if isinstance(share, dict) else share)
            )
    moved = {
        name: _moved(weights[name], total, shares[name], of_all) for name, total in sums.items()
    }
    return weights | moved


def _add(sums: Tensors, name: str, delta: Tensor, full: Tensor) -> None:
    if name in sums:
        view(sums[name], tuple(delta.shape)).add_(delta)
    elif delta.shape == full.shape:
        sums[name] = delta
    else:
        sums[name] = torch.zeros_like(full)
        view(sums[name], tuple(delta.shape)).copy_(delta)


def _moved(
    weight: Tensor, total: Tensor, shares: list[tuple[Shape, float | Tensor]], of_all: float
) -> Tensor:
    """Return the new weight: its old value less the mean difference, where anyone has a say."""
    first = shares[0][0]
    numbers = [share for _, share in shares if not isinstance(share, Tensor)]
    if len(numbers) == len(shares) and all(shape == first for shape, _ in shares):
        divisor = functools.reduce(operator.add, numbers, of_all)
        view(total, first).div_(divisor)
        return torch.sub(weight, total)
    divisors = torch.full_like(weight, of_all)
    for shape, share in shares:
        view(divisors, shape).add_(share)
    return torch.sub(weight, total.div_(divisors.masked_fill_(divisors == 0, 1.0)))


def pack_masks(masks: Tensors) -> Tensors:
    """Pack masks to a bit per entry, for the wire."""
    return {name: torch.from_numpy(np.packbits(m.numpy())) for name, m in masks.items()}


def unpack_masks(packed: Tensors, like: Tensors) -> Tensors:
    """Undo `pack_masks`; `like` has the shapes."""
    found: Tensors = {}
    for name, bits in packed.items():
        shape, count = like[name].shape, like[name].numel()
        flags = np.unpackbits(bits.numpy(), count=count).astype(bool)
        found[name] = torch.from_numpy(flags).view(shape)
    return found
