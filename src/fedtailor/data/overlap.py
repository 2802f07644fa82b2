"""Clients that share images, dealt so that what one is tested on is nobody's to train on."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.partition_fit import fit_counts
from fedtailor.data.proportions import assign_rows, rows_by_class
from fedtailor.data.source import Ints
from fedtailor.data.split import Cut, check_size, cut, held_out

_Floats: TypeAlias = npt.NDArray[np.floating[Any]]


def share_images(
    labels: Ints, clients: int, options: DataOptions, rng: np.random.Generator
) -> list[Cut]:
    """Let clients draw from rows that are cut into train, val and test before; new ones are last.

    New clients have images of their own if half of each class suffices for that; else that half is
    theirs, and they share it among themselves.
    """
    new = options.new_clients
    size = options.per_client or max(1, len(labels) // (clients + new))
    rows = np.arange(len(labels))
    halves = np.bincount(labels) // 2
    if new * size <= halves.sum():
        shares = rng.dirichlet(np.full(len(halves), options.alpha), size=new)
        own = assign_rows(labels, fit_counts(shares, size, halves, rng), rng) if new else []
        theirs = [cut(mine, clients + k, options) for k, mine in enumerate(own)]
        rest = np.setdiff1d(rows, np.concatenate(own)) if new else rows
    else:
        half, rest = _take_evenly(_by_class_at_random(rows, labels, rng), len(rows) // 2)
        theirs = _draw_all(half, labels, range(clients, clients + new), size, options, rng)
    return [*_draw_all(rest, labels, range(clients), size, options, rng), *theirs]


def _draw_all(
    rows: Ints,
    labels: Ints,
    clients: range,
    size: int,
    options: DataOptions,
    rng: np.random.Generator,
) -> list[Cut]:
    """Cut rows into pools; let each client draw from all of them in one set of proportions."""
    held = held_out(size, options)
    wanted = (size - sum(held), *held)
    check_size(size, wanted[0], clients[0], 2 + sum(count > 0 for count in held))
    rest, pools = _by_class_at_random(rows, labels, rng), []
    for count in held_out(len(rows), options):
        pool, rest = _take_evenly(rest, count)
        pools.append(pool)
    pools.insert(0, rest)
    if any(count > len(pool) for count, pool in zip(wanted, pools, strict=True)):
        raise UserError(
            f"data.per_client: {size} images for each of {len(clients)} clients cannot be drawn "
            f"from the {len(rows)} that they are to share, so lower it."
        )
    classes = int(labels.max()) + 1
    by_class = [[pool[at] for at in rows_by_class(labels[pool], classes)] for pool in pools]
    dealt = []
    for _ in clients:
        weight = rng.dirichlet(np.full(classes, options.alpha))
        drawn = [draw(b, n, weight, rng) for b, n in zip(by_class, wanted, strict=True)]
        dealt.append(tuple(rng.permutation(part) for part in drawn))
    return dealt


def _by_class_at_random(rows: Ints, labels: Ints, rng: np.random.Generator) -> Ints:
    """Order rows by class, and at random within a class."""
    mixed = rng.permutation(rows)
    return mixed[np.argsort(labels[mixed], kind="stable")]


def _take_evenly(order: Ints, count: int) -> tuple[Ints, Ints]:
    """Take `count` rows at even distances, so the same part of every class; return the rest too."""
    at = np.arange(count) * len(order) // max(1, count)
    return order[at], np.delete(order, at)


def share_everything(
    labels: Ints, clients: int, options: DataOptions, rng: np.random.Generator
) -> list[Ints]:
    """Let each client draw from all rows before anything is cut off: splits then leak."""
    size = options.per_client or max(1, len(labels) // clients)
    if size > len(labels):
        raise UserError(
            f"data.per_client: {size} is more than the {len(labels)} images there are, so lower it."
        )
    by_class = rows_by_class(labels, int(labels.max()) + 1)
    alphas = np.full(len(by_class), options.alpha)
    return [np.sort(draw(by_class, size, rng.dirichlet(alphas), rng)) for _ in range(clients)]


def draw(by_class: list[Ints], size: int, weight: _Floats, rng: np.random.Generator) -> Ints:
    """Draw `size` rows, each weighted by its class, none twice.

    To draw without replacement by weight is to take the rows whose exponential waiting times
    (rate = weight) end first; those of a class end in random order, so only the times are drawn.
    """
    if size == 0:
        return np.zeros(0, dtype=np.int64)
    label = np.repeat(np.arange(len(by_class)), [min(size, len(rows)) for rows in by_class])
    waiting = np.concatenate([np.arange(len(r), max(len(r) - size, 0), -1) for r in by_class])
    starts = np.searchsorted(label, label)
    steps = np.cumsum(rng.standard_exponential(len(label)) / waiting)
    times = (steps - np.concatenate([[0.0], steps])[starts]) / np.maximum(weight, 1e-100)[label]
    first = label[np.argpartition(times, size - 1)[:size]] if size < len(times) else label
    counts = np.bincount(first, minlength=len(by_class))
    drawn = [
        rng.choice(rows, count, replace=False)
        for rows, count in zip(by_class, counts, strict=True)
        if count
    ]
    return np.concatenate(drawn)
