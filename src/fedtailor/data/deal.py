"""Who gets which image, and for what."""

from fedtailor.core.rng import numpy_rng_for
from fedtailor.data.options import DataOptions
from fedtailor.data.overlap import share_images
from fedtailor.data.partition import partition
from fedtailor.data.source import Source
from fedtailor.data.split import Parts, check_split, split, with_tests


def deal(source: Source, clients: int, options: DataOptions) -> list[Parts]:
    """Return all clients' train, val and test rows; official test rows come after the pool's."""
    test_labels = source.test_labels if options.split == "official" else None
    check_split(test_labels, options)
    rng = numpy_rng_for(options.seed, "partition")
    if options.partition == "dirichlet_equal" and options.overlap is True:
        cuts = share_images(source.labels, clients, options, rng)
        return with_tests(cuts, source.labels, test_labels, options)
    everyone = clients + options.new_clients
    shares = partition(source.labels, everyone, options, rng, source.client)
    return split(shares, source.labels, test_labels, options)
