"""Which client holds which rows: one function per scheme."""

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.overlap import share_everything
from fedtailor.data.partition_fit import fit_counts
from fedtailor.data.partition_shards import shards
from fedtailor.data.proportions import assign_rows, rows_by_class
from fedtailor.data.source import Ints

_ATTEMPTS = 1000
_DRAWS = 30_000_000  # of gamma variates over all attempts: a few seconds


def partition(
    labels: Ints, clients: int, options: DataOptions, rng: np.random.Generator, column: Ints | None
) -> list[Ints]:
    """Return the rows of each client, in ascending order."""
    match options.partition:
        case "iid":
            return iid(len(labels), clients, options.per_client, rng)
        case "dirichlet":
            shares = dirichlet(labels, clients, options, rng)
            return at_most(shares, options.per_client, rng)
        case "dirichlet_equal":
            return dirichlet_equal(labels, clients, options, rng)
        case "shards":
            return shards(labels, clients, options.classes_per_client, options.per_client, rng)
        case "by_client":
            if column is None:
                raise UserError("data.partition: by_client needs data that names its clients.")
            return at_most(rows_by_class(column, clients), options.per_client, rng)


def at_most(shares: list[Ints], size: int | None, rng: np.random.Generator) -> list[Ints]:
    """Take `size` random rows of every client that has more."""
    if size is None:
        return shares
    return [
        np.sort(rng.choice(rows, size, replace=False)) if len(rows) > size else rows
        for rows in shares
    ]


def equal_size(rows: int, clients: int, per_client: int | None) -> int:
    """Return how many rows each client gets when all get the same number, none twice."""
    size = rows // clients if per_client is None else per_client
    if size == 0 or size * clients > rows:
        field, images = ("clients", 1) if per_client is None else ("per_client", per_client)
        raise UserError(
            f"data.{field}: {clients} clients with {images} images each need {clients * images}, "
            f"but the data has {rows}, so ask for less."
        )
    return size


def iid(rows: int, clients: int, per_client: int | None, rng: np.random.Generator) -> list[Ints]:
    """Deal rows at random, equally many to each, or one more to some when none are left over."""
    size = equal_size(rows, clients, per_client)
    order = rng.permutation(rows)
    parts = np.array_split(order if per_client is None else order[: size * clients], clients)
    return [np.sort(part) for part in parts]


def dirichlet(
    labels: Ints, clients: int, options: DataOptions, rng: np.random.Generator
) -> list[Ints]:
    """Deal all rows, each class in proportions over clients drawn from Dirichlet(alpha)."""
    totals = np.bincount(labels)
    if clients * options.min_size > len(labels):
        raise UserError(
            f"data.min_size: {clients} clients with at least {options.min_size} images each need "
            f"{clients * options.min_size}, but the data has {len(labels)}, so lower it or "
            "data.clients."
        )
    attempts = max(10, min(_ATTEMPTS, _DRAWS // (clients * len(totals))))
    for _ in range(attempts):
        counts = _dirichlet_counts(totals, clients, options.alpha, options.balance, rng)
        if counts.sum(axis=1).min() >= options.min_size:
            return assign_rows(labels, counts, rng)
    raise UserError(
        f"data.min_size: {attempts} draws with alpha = {options.alpha} left one of {clients} "
        f"clients with fewer than {options.min_size} images, "
        "so raise alpha, or lower clients or min_size."
    )


def _dirichlet_counts(
    totals: Ints, clients: int, alpha: float, balance: bool, rng: np.random.Generator
) -> Ints:
    """Draw how many images of each class each client gets."""
    shares = rng.dirichlet(np.full(clients, alpha), size=len(totals))
    counts = np.zeros((clients, len(totals)), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for label, total in enumerate(totals):
        share = shares[label]
        if balance:  # SPIDER's rule: who has its fair share already gets nothing more
            open_ = sizes < totals.sum() / clients
            share = np.where(open_, share, 0.0)
            if share.sum() == 0:
                share = open_.astype(float)
        edges = np.cumsum(share)
        if total:
            # Divided by its last, the cumulative sum ends in exactly 1: every image is dealt.
            ends = np.floor(edges / edges[-1] * total).astype(np.int64)
            counts[:, label] = np.diff(ends, prepend=0)
            sizes += counts[:, label]
    return counts


def dirichlet_equal(
    labels: Ints, clients: int, options: DataOptions, rng: np.random.Generator
) -> list[Ints]:
    """Give all clients equally many rows, each in class proportions drawn from Dirichlet(alpha)."""
    if options.overlap == "leaky":
        return share_everything(labels, clients, options, rng)
    totals = np.bincount(labels)
    size = equal_size(len(labels), clients, options.per_client)
    shares = rng.dirichlet(np.full(len(totals), options.alpha), size=clients)
    return assign_rows(labels, fit_counts(shares, size, totals, rng), rng)
