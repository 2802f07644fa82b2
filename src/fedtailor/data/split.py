"""Train, val and test rows of every client."""

from typing import TypeAlias

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.core.rng import numpy_rng_for
from fedtailor.data.options import DataOptions
from fedtailor.data.proportions import assign_rows, count_classes, largest_remainder, rows_by_class
from fedtailor.data.source import Ints

Cut: TypeAlias = tuple[Ints, ...]  # train, val and, where the pool has it, test
Parts: TypeAlias = tuple[Ints, Ints, Ints]


def split(
    shares: list[Ints], labels: Ints, test_labels: Ints | None, options: DataOptions
) -> list[Parts]:
    """Split every client's rows; official test rows are numbered after the pool's."""
    check_split(test_labels, options)
    cuts = [cut(rows, k, options) for k, rows in enumerate(shares)]
    return with_tests(cuts, labels, test_labels, options)


def check_split(test_labels: Ints | None, options: DataOptions) -> None:
    """Raise a UserError when the images cannot be split as the options say."""
    fractions = options.fractions
    train, val, test = fractions
    if not (min(train, test) > 0 and val >= 0 and abs(sum(fractions) - 1) < 1e-6):
        raise UserError(
            f"data.fractions: {list(fractions)} must be three numbers that sum to 1, all above "
            "zero but the second, which may be zero."
        )
    if options.split == "pool" and options.test_per_client is not None:
        raise UserError('data.test_per_client: set data.split = "official" to use it.')
    if options.split == "official" and test_labels is None:
        raise UserError('data.split: this data has no official test set, so set it to "pool".')


def held_out(size: int, options: DataOptions) -> tuple[int, ...]:
    """Count the val and, where the pool has it, test images of so many; at least 1 if any."""
    train, val, test = options.fractions
    official = options.split == "official"
    counts = (size * val / (train + val),) if official else (size * val, size * test)
    return tuple(max(1, round(count)) if count else 0 for count in counts)


def cut(rows: Ints, client: int, options: DataOptions) -> Cut:
    """Take what is held out from the client's own rows; at least 2 are left to train on."""
    held = held_out(len(rows), options)
    check_size(len(rows), len(rows) - sum(held), client, 2 + sum(count > 0 for count in held))
    order = numpy_rng_for(options.seed, "split", client).permutation(rows)
    *parts, train = np.split(order, np.cumsum(held))
    return (train, *parts)


def with_tests(
    cuts: list[Cut], labels: Ints, test_labels: Ints | None, options: DataOptions
) -> list[Parts]:
    """Give every client official test rows where the pool has none to test on."""
    if options.split == "pool" or test_labels is None:
        return [(train, val, test) for train, val, test in cuts]
    tests = official_tests([np.concatenate(own) for own in cuts], labels, test_labels, options)
    return [
        (train, val, test + len(labels)) for (train, val), test in zip(cuts, tests, strict=True)
    ]


def without_val(parts: Parts) -> Parts:
    """Join the validation rows to the training rows, in ascending order."""
    train, val, test = parts
    return np.sort(np.concatenate([train, val])), val[:0], test


def check_size(size: int, train: int, client: int, least: int) -> None:
    """Raise a UserError when too little is left to train on."""
    if train < 2:
        raise UserError(
            f"data.fractions: client {client} has {size} images, of which {max(train, 0)} would "
            f"be left for training, so give it more (at least {least}) by fewer data.clients or a "
            "larger data.min_size or data.per_client, or raise the first fraction."
        )


def official_tests(
    shares: list[Ints], labels: Ints, test_labels: Ints, options: DataOptions
) -> list[Ints]:
    """Give every client rows of the official test set, in its own class proportions."""
    classes = int(max(labels.max(), test_labels.max())) + 1
    mine = count_classes(labels, shares, classes)
    pool = np.bincount(labels, minlength=classes)
    tests = np.bincount(test_labels, minlength=classes)
    if options.test_per_client is None and (mine.sum(axis=0) <= pool).all():
        counts = _fair_share(mine, pool, tests)
        return assign_rows(test_labels, counts, numpy_rng_for(options.seed, "test"))
    by_class = rows_by_class(test_labels, classes)
    ratio = len(test_labels) / len(labels)
    drawn = []
    for client, have in enumerate(mine):
        size = options.test_per_client or max(1, round(have.sum() * ratio))
        want = largest_remainder(have / have.sum() * size, size)
        _check_enough(want, tests, client)
        rng = numpy_rng_for(options.seed, "test", client)
        picks = [rng.choice(by_class[c], want[c], replace=False) for c in np.flatnonzero(want)]
        drawn.append(np.sort(np.concatenate(picks)))
    return drawn


def _fair_share(mine: Ints, pool: Ints, tests: Ints) -> Ints:
    """Return how many test rows of each class each client gets, so that no two share a row."""
    counts = np.zeros_like(mine)
    for label in np.flatnonzero(pool):
        shares = mine[:, label] * (tests[label] / pool[label])
        total = int(np.floor(shares.sum() + 1e-6))
        counts[:, label] = largest_remainder(shares, total)
    free = tests - counts.sum(axis=0)
    for client in np.flatnonzero(counts.sum(axis=1) == 0):
        own = np.where(free > 0, mine[client], 0)
        if not own.any():
            raise UserError(
                f"data.split: the official test set is too small to give client {client} a test "
                "image of its own, so set data.test_per_client, which lets clients share them."
            )
        label = int(own.argmax())
        counts[client, label] += 1
        free[label] -= 1
    return counts


def _check_enough(want: Ints, tests: Ints, client: int) -> None:
    """Raise a UserError when a client wants more test rows of a class than there are."""
    short = np.flatnonzero(want > tests)
    if len(short):
        raise UserError(
            f"data.test_per_client: client {client} needs {want[short[0]]} test images of class "
            f"{short[0]}, but the official test set has {tests[short[0]]}, so ask for fewer."
        )
