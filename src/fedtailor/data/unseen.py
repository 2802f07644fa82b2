"""Test images of classes that a client does not train on."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError
from fedtailor.core.rng import numpy_rng_for
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Ints
from fedtailor.data.split import Parts

_Classes: TypeAlias = npt.NDArray[np.bool_]  # of each class whether it is meant


def with_unseen(
    parts: list[Parts], labels: Ints, allowed: Ints, options: DataOptions
) -> list[Parts]:
    """Put images of other classes into the tests of all clients that lack some class.

    They are drawn from those `allowed` rows that nobody trains on or chooses by; clients may share
    them, and others may be tested on them, too. Tests keep their sizes.
    """
    if options.test_unseen == 0:
        return parts
    there = np.setdiff1d(allowed, np.concatenate([part for own in parts for part in own[:2]]))
    present = np.bincount(labels) > 0
    mixed = [_mixed(k, own, labels, there, present, options) for k, own in enumerate(parts)]
    if all(_has(labels, train, present)[labels[test]].all() for train, _, test in mixed):
        raise UserError(
            f"data.test_unseen: at {options.test_unseen:g} no client would be tested on a class "
            "that it does not train on, so raise it or let clients lack classes, by a lower "
            'data.alpha or data.partition = "shards".'
        )
    return mixed


def _mixed(
    client: int, own: Parts, labels: Ints, there: Ints, present: _Classes, options: DataOptions
) -> Parts:
    """Replace test images of one client; those of other classes that it has by chance count."""
    train, val, test = own
    # Not of classes that it chooses by either: validation images may come to be trained on.
    lacking = present & ~_has(labels, np.concatenate([train, val]), present)
    seen = _has(labels, train, present)[labels[test]]
    missing = round(options.test_unseen * len(test)) - int((~seen).sum())
    if missing <= 0 or not lacking.any():
        return own
    strange = np.setdiff1d(there[lacking[labels[there]]], test)
    if missing > len(strange):
        raise UserError(
            f"data.test_unseen: client {client} lacks {missing} test images of classes that it "
            f"does not train on, but there are {len(strange)}, so lower it."
        )
    rng = numpy_rng_for(options.seed, "unseen", client)
    kept = rng.permutation(test[seen])[missing:]
    drawn = rng.choice(strange, missing, replace=False)
    return train, val, rng.permutation(np.concatenate([kept, test[~seen], drawn]))


def _has(labels: Ints, rows: Ints, present: _Classes) -> _Classes:
    """Tell of each class whether some of these rows are of it."""
    return np.bincount(labels[rows], minlength=len(present)) > 0
