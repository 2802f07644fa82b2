"""What about a user's data is allowed, but probably not meant: a sentence each."""

from collections.abc import Iterator

import numpy as np

from fedtailor.data.client_names import label_of
from fedtailor.data.options import DataOptions, Scheme
from fedtailor.data.source import Source

_NAMED = 3  # clients or classes in a sentence
_COUNTS_FOR: dict[str, tuple[Scheme, ...]] = {  # keys that not every way of dealing asks for
    "alpha": ("dirichlet", "dirichlet_equal"),
    "min_size": ("dirichlet",),
    "balance": ("dirichlet",),
    "classes_per_client": ("shards",),
}
_FAR = 10.0  # what a network is given should not be as far from 0


def surprises(source: Source, clients: int, options: DataOptions) -> tuple[str, ...]:
    """Say what a user should know of their data before they train on it."""
    if options.path is None:
        return tuple(_about_keys(options))
    return (
        *_about_keys(options),
        *_about_classes(source),
        *_about_clients(source, clients, options),
        *_about_pixels(source, options),
    )


def _about_keys(options: DataOptions) -> Iterator[str]:
    """Name keys that were changed and change nothing; a default may stand in any config."""
    usual = DataOptions()
    for key, schemes in _COUNTS_FOR.items():
        if options.partition not in schemes and getattr(options, key) != getattr(usual, key):
            yield f'data.{key} has no effect with data.partition = "{options.partition}"'


def _about_classes(source: Source) -> Iterator[str]:
    there = np.unique(source.labels)
    if source.test_labels is not None:
        there = np.union1d(there, source.test_labels)
    total = len(source.classes)
    if len(there) == 1:
        yield (
            f"all images are of one class ({source.classes[there[0]]}), so there is nothing to "
            "tell apart and every accuracy will be 100 %"
        )
    elif len(there) < total:
        some = ", ".join(source.classes[label] for label in there[:_NAMED])
        more = " ..." if len(there) > _NAMED else ""
        yield (
            f"labels run from 0 to {total - 1}, which makes {total} classes, but only {len(there)} "
            f"of them have images ({some}{more}); number them 0 to {len(there) - 1} unless the "
            "others are to come"
        )


def _about_clients(source: Source, clients: int, options: DataOptions) -> Iterator[str]:
    there = len(source.client_names)
    if source.client is not None and options.partition != "by_client":
        yield (
            f"the data says which of {there} clients an image belongs to, but data.partition = "
            f'"{options.partition}" deals all images anew; "by_client" keeps them'
        )
    left = range(clients + options.new_clients, there)
    if options.partition == "by_client" and left:
        some = ", ".join(label_of(source.client_names, number) for number in left[:_NAMED])
        more = " ..." if len(left) > _NAMED else ""
        yield (
            f"{len(left)} of {there} clients take no part ({some}{more}), since data.clients = "
            f"{clients}; leave it out to take all"
        )


def _about_pixels(source: Source, options: DataOptions) -> Iterator[str]:
    if source.images.dtype == np.uint8:
        return
    low, high = float(source.images.min()), float(source.images.max())
    unscaled = options.mean is None and options.std is None and source.std[0] == 0.5
    far = max(
        abs(value - mean) / std
        for value in (low, high)
        for mean, std in zip(source.mean, source.std, strict=True)
    )
    if (unscaled and (low < 0 or high > 1)) or far > _FAR:
        yield (
            f"pixels are floats from {low:.4g} to {high:.4g}, but are taken to lie in 0 to 1 "
            f"(mean {source.mean[0]:g}, std {source.std[0]:g}); scale them, or set data.mean and "
            "data.std to theirs"
        )
