"""Whole numbers of images from proportions, and images from whole numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedtailor.data.source import Ints


def assign_rows(labels: Ints, counts: Ints, rng: np.random.Generator) -> list[Ints]:
    """Give client k counts[k, c] random rows of class c, no row twice; return sorted rows."""
    owner = np.full(len(labels), -1, dtype=np.int64)
    for label, rows in enumerate(rows_by_class(labels, counts.shape[1])):
        owners = np.repeat(np.arange(len(counts)), counts[:, label])
        owner[rng.permutation(rows)[: len(owners)]] = owners
    return rows_by_class(owner, len(counts))


def rows_by_class(labels: Ints, classes: int) -> list[Ints]:
    """Return the rows of each label from 0 to classes-1, in order; others are left out."""
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], np.arange(classes + 1))
    return [order[edges[k] : edges[k + 1]] for k in range(classes)]


def count_classes(labels: Ints, rows: list[Ints], classes: int) -> Ints:
    """Return how many rows of each class each client has, as (clients, classes)."""
    client = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    flat = client * classes + labels[np.concatenate(rows)]
    return np.bincount(flat, minlength=len(rows) * classes).reshape(len(rows), classes)


def largest_remainder(shares: npt.NDArray[np.floating[Any]], total: int) -> Ints:
    """Round shares that sum to about `total` to whole numbers that sum to it exactly."""
    whole = np.floor(shares + 1e-9).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - shares, kind="stable")[:missing]] += 1
    return whole
