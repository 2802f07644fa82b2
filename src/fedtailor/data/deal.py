"""Who gets which image, and for what."""

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.core.rng import numpy_rng_for
from fedtailor.data.options import DataOptions
from fedtailor.data.overlap import share_images
from fedtailor.data.partition import partition
from fedtailor.data.public import NO_ROWS
from fedtailor.data.ready_cut import keep_split
from fedtailor.data.source import Ints, Source
from fedtailor.data.split import Parts, check_split, split, with_tests


def deal(source: Source, clients: int, options: DataOptions, public: Ints = NO_ROWS) -> list[Parts]:
    """Return all clients' train, val and test rows; official test rows come after the pool's.

    Args:
        source: the images.
        clients: how many train; new ones come after them.
        options: how to deal.
        public: rows that are the server's; the others are dealt as if these did not exist.
    """
    if source.split is not None:
        return keep_split(source, clients + options.new_clients, options)
    tests = source.test_labels if options.split == "official" else None
    check_split(tests, options)
    count = len(source.labels)
    rest = np.delete(np.arange(count), public)
    column = None if source.client is None else source.client[rest]
    try:
        parts = _deal(source.labels[rest], column, tests, clients, options)
    except UserError as error:
        if not len(public):
            raise
        kept = f"data.public: with {len(public)} of {count} images kept for the server"
        raise UserError(f"{kept}, {error}") from None
    rows = np.concatenate([rest, np.arange(count, count + (0 if tests is None else len(tests)))])
    return [(rows[train], rows[val], rows[test]) for train, val, test in parts]


def _deal(
    labels: Ints, column: Ints | None, tests: Ints | None, clients: int, options: DataOptions
) -> list[Parts]:
    rng = numpy_rng_for(options.seed, "partition")
    if options.partition == "dirichlet_equal" and options.overlap is True:
        cuts = share_images(labels, clients, options, rng)
        return with_tests(cuts, labels, tests, options)
    shares = partition(labels, clients + options.new_clients, options, rng, column)
    return split(shares, labels, tests, options)
