"""Merging what clients trained into the server's weights, and how much each of them counts."""

import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.types import Tensors
from fedtailor.networks.store import Shape, view

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
    """Return the weighted mean, entry by entry, of those who trained the entry.

    It is a running mean: each part moves it by weight / total so far of the difference. So a
    merge of untouched weights is the identity to the bit, and so is that of an entry that nobody
    trained. Parts are read once, one at a time, in the order given. What nobody trained is
    returned as it was given, not copied.
    """
    means: Tensors = {}
    totals: dict[str, _Total] = {}
    vectors = _Vectors({name: weight for name, weight in weights.items() if _is_vector(weight)})
    for part in parts:
        given = _everywhere(weights, part.weights) if part.everywhere else part.weights
        vectors.move({n: t for n, t in given.items() if _is_vector(t)}, part.weight)
        for name, trained in given.items():
            if _is_vector(trained):
                continue
            share = part.weight[name] if isinstance(part.weight, dict) else part.weight
            if name in means:
                totals[name].move(means[name], trained, share)
            else:
                totals[name] = _Total()
                means[name] = totals[name].start(weights[name], trained, share)
    return weights | means | vectors.means()


def _is_vector(tensor: Tensor) -> bool:
    return tensor.dim() == 1 and tensor.dtype == torch.float32


def _everywhere(weights: Tensors, trained: Tensors) -> Tensors:
    """Complete what a client trained by the server's own weights."""
    found = dict(weights)
    for name, tensor in trained.items():
        found[name] = tensor
        if tensor.shape != weights[name].shape:
            found[name] = weights[name].clone()
            view(found[name], tensor.shape).copy_(tensor)
    return found


class _Vectors:
    """The means of all vectors, one after the other: they are many and small."""

    def __init__(self, weights: Tensors) -> None:
        self.sizes = {name: len(weight) for name, weight in weights.items()}
        ends = itertools.accumulate(self.sizes.values())
        self.starts = {n: end - self.sizes[n] for n, end in zip(self.sizes, ends, strict=True)}
        self.mean = torch.cat([*weights.values(), torch.empty(0)])
        self.total = torch.zeros_like(self.mean)
        self.moved: set[str] = set()

    def move(self, trained: Tensors, weight: float | Tensors) -> None:
        """Move the means towards what one client trained."""
        if not trained:
            return
        self.moved |= set(trained)
        rows = self._rows(tuple((name, len(vector)) for name, vector in trained.items()))
        each = weight
        if isinstance(each, dict):
            each = torch.cat([each[name].float() for name in trained])
        total = self.total.index_select(0, rows).add_(each)
        mean = self.mean.index_select(0, rows)
        self.total.index_copy_(0, rows, total)
        moved = _towards(mean, torch.cat(list(trained.values())), each, total)
        self.mean.index_copy_(0, rows, moved)

    def _rows(self, windows: tuple[tuple[str, int], ...]) -> Tensor:
        sizes = np.array([size for _, size in windows])
        starts = np.array([self.starts[name] for name, _ in windows])
        ends = sizes.cumsum()
        return torch.from_numpy(np.arange(ends[-1]) + np.repeat(starts - (ends - sizes), sizes))

    def means(self) -> Tensors:
        """Return the vectors that anyone trained."""
        if not self.moved:
            return {}
        parts = zip(self.sizes, self.mean.split([*self.sizes.values()]), strict=True)
        return {name: mean.clone() for name, mean in parts if name in self.moved}


class _Total:
    """How much has been counted into each entry of one tensor's mean.

    As long as parts are windows that differ in their channels only, it is known by windows: an
    entry's total is one number in each of a few boxes. Else it is a tensor.
    """

    def __init__(self) -> None:
        self.windows: dict[Shape, float] = {}
        self.entries: Tensor | None = None

    def start(self, server: Tensor, trained: Tensor, weight: float | Tensor) -> Tensor:
        """Return the mean of the first part alone."""
        if not isinstance(weight, Tensor) and weight and trained.shape == server.shape:
            self.windows[tuple(trained.shape)] = weight
            return trained.clone(memory_format=torch.contiguous_format)
        mean = server.clone()
        self.move(mean, trained, weight)
        return mean

    def move(self, mean: Tensor, trained: Tensor, weight: float | Tensor) -> None:
        """Move a mean towards what one client trained, which may be a window of it."""
        shape = tuple(trained.shape)
        counted = self.windows.get(shape) if len(self.windows) == 1 else None
        if counted and self.entries is None and not isinstance(weight, Tensor):  # the usual case
            self.windows[shape] = counted + weight
            _move(view(mean, shape), trained, weight / (counted + weight))
            return
        alike = all(window[2:] == shape[2:] for window in self.windows)
        if self.entries is None and alike and not isinstance(weight, Tensor):
            for old, new, counted in self._boxes(view(mean, shape), trained):
                _move(old, new, weight / (counted + weight) if weight else 0.0)
            self.windows[shape] = self.windows.get(shape, 0.0) + weight
            return
        if self.entries is None:
            self.entries = torch.zeros_like(mean)
            for window, counted in self.windows.items():
                view(self.entries, window).add_(counted)
        _move_entries(view(mean, shape), trained, view(self.entries, shape), weight)

    def _boxes(self, mean: Tensor, trained: Tensor) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Cut a window into boxes whose entries have been counted alike."""
        size = tuple(trained.shape[:2])
        seen = [(tuple(map(min, window, size)), count) for window, count in self.windows.items()]
        if all(window == size for window, _ in seen):
            yield mean, trained, sum(count for _, count in seen)
            return
        cuts = [sorted({most, *(window[d] for window, _ in seen)}) for d, most in enumerate(size)]
        for ends in itertools.product(*cuts):
            counted = sum(n for window, n in seen if all(map(operator.ge, window, ends)))
            box = tuple(
                slice(cut[cut.index(end) - 1] if end != cut[0] else 0, end)
                for cut, end in zip(cuts, ends, strict=True)
            )
            yield mean[box], trained[box], counted


def _move(mean: Tensor, trained: Tensor, share: float) -> None:
    """Move a mean, by that of lerp's two formulas which keeps even a negative zero."""
    if share == 0.0:
        return
    if share == 1.0:
        mean.copy_(trained)
    elif share < 0.5:
        torch.lerp(trained, mean, 1 - share, out=mean)
    else:
        torch.lerp(mean, trained, share, out=mean)


def _move_entries(mean: Tensor, trained: Tensor, total: Tensor, weight: float | Tensor) -> None:
    """Move a mean by shares that differ from entry to entry; no weight, no move."""
    counted = total.contiguous().add_(weight)  # dense copies: windows of kernels are slow to walk
    total.copy_(counted)
    mean.copy_(_towards(mean.contiguous(), trained.contiguous(), weight, counted))


def _towards(old: Tensor, new: Tensor, weight: float | Tensor, total: Tensor) -> Tensor:
    """Return old + share * (new - old), exact at both ends and a negative zero kept."""
    share = weight / total
    if not isinstance(weight, Tensor) and weight:
        low, high = torch.aminmax(share)
        if low >= 0.5:
            return torch.lerp(old, new, share)
        if high < 0.5:
            return torch.lerp(new, old, 1 - share)
    moved = torch.where(share < 0.5, old - (old - new) * share, new - (new - old) * (1 - share))
    return torch.where(torch.as_tensor(weight) == 0, old, moved)


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
