"""Batch norm's statistics: every rule for them in one place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS = ("running_mean", "running_var")


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
    norms = norms_of(module)
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
        norm.train()
    try:
        yield bool(norms)
    finally:  # the module is used again, whatever happened
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        module.eval()
