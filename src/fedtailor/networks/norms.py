"""Batch norm's statistics: every rule for them in one place."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS = ("running_mean", "running_var")
Buffers: TypeAlias = list[dict[str, Tensor | None]]  # of each batch norm of a module


def is_statistic(name: str) -> bool:
    """Tell running means and variances, by their name."""
    return name.endswith(STATISTICS)


def is_norm(module: nn.Module) -> TypeGuard[_BatchNorm]:
    """Tell a batch norm."""
    return isinstance(module, _BatchNorm)


def norms_of(module: nn.Module) -> list[_BatchNorm]:
    """List the batch norms of a network."""
    return [part for part in module.modules() if is_norm(part)]


def settle(module: nn.Module) -> None:
    """Take out of the running statistics what is left of 0 and 1, which they began with.

    For a network that got no statistics and was trained for a few batches.
    """
    for norm in norms_of(module):
        mean, variance, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
        if norm.momentum is None or mean is None or variance is None or batches is None:
            continue
        if int(batches):
            left = (1 - norm.momentum) ** int(batches)
            mean.div_(1 - left)
            variance.sub_(left).div_(1 - left).clamp_(min=0)


@contextmanager
def measuring(module: nn.Module) -> Iterator[bool]:
    """Have statistics become the plain means over the batches that pass; nothing else changes.

    Yields whether there are any to measure. All else stands in evaluation mode, without dropout,
    and so does all of it afterwards.
    """
    module.eval()
    norms = norms_of(module)
    with averaging(norms):
        yield bool(norms)


@contextmanager
def averaging(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Have the statistics of some norms become the plain means over the batches that pass.

    Afterwards these stand in evaluation mode.
    """
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
        norm.training = True
    try:
        yield
    finally:  # they are used again, whatever happened
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.training = False


@contextmanager
def by_batch(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Have norms take each batch's own statistics; running ones are neither used nor touched.

    Afterwards these stand in evaluation mode.
    """
    tracking = [norm.track_running_stats for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, tracks in zip(norms, tracking, strict=True):
            norm.training, norm.track_running_stats = False, tracks


@contextmanager
def lent(norms: Sequence[_BatchNorm], buffers: Buffers | None = None) -> Iterator[Buffers]:
    """Give norms other statistics than their own, which they get back.

    Yields those they were given, to be lent to them again.

    Args:
        norms: batch norms.
        buffers: what was yielded another time; none: new ones, to be measured.
    """
    own = [dict(norm._buffers) for norm in norms]
    given = [_like(each) for each in own] if buffers is None else buffers
    for norm, others in zip(norms, given, strict=True):
        norm._buffers.update(others)
    try:
        yield given
    finally:
        for norm, others in zip(norms, own, strict=True):
            norm._buffers.update(others)


def _like(buffers: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {n: None if b is None else torch.empty_like(b) for n, b in buffers.items()}


@contextmanager
def still(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put modules, all within them listed, into evaluation mode and each back into its own."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
