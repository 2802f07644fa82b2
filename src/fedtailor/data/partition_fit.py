"""Class counts of equally large clients, as near as can be to the proportions they drew."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedtailor.data.source import Ints

_Floats = npt.NDArray[np.floating[Any]]


def fit_counts(shares: _Floats, size: int, totals: Ints, rng: np.random.Generator) -> Ints:
    """Return (clients, classes) counts: rows sum to `size`, columns to at most `totals`.

    There must be enough images in all: len(shares) * size <= totals.sum().
    """
    return _round(_fit(shares, size, totals), size, totals, rng)


def _fit(shares: _Floats, size: int, totals: Ints, steps: int = 300) -> _Floats:
    """Scale rows and columns by turns (iterative proportional fitting), columns only downwards."""
    start = np.maximum(shares, 1e-12)  # so that a class all clients shun can still be dealt
    column = np.ones(len(totals))
    row = size / start.sum(axis=1)
    for _ in range(steps):
        sums = row @ start
        fitted = np.clip(totals / np.maximum(sums, 1e-300), 1e-200, 1.0)
        done = np.allclose(fitted, column, rtol=1e-6, atol=0)
        column = fitted
        row = size / (start @ column)
        if done:
            break
    counts = start * row[:, None] * column
    return counts * np.minimum(1.0, totals / np.maximum(counts.sum(axis=0), 1e-300))


def _round(counts: _Floats, size: int, totals: Ints, rng: np.random.Generator) -> Ints:
    """Round down, then give what is missing by the largest remainders that are still free."""
    whole = np.floor(counts + 1e-9).astype(np.int64)
    missing = size - whole.sum(axis=1)
    free = totals - whole.sum(axis=0)
    for client in rng.permutation(len(whole)):
        order = np.argsort(whole[client] - counts[client], kind="stable")
        order = order[free[order] > 0]
        one = order[: missing[client]]
        whole[client, one] += 1
        free[one] -= 1
        rest = missing[client] - len(one)
        for label in order if rest > 0 else ():
            more = min(rest, free[label])
            whole[client, label] += more
            free[label] -= more
            rest -= more
    return whole
