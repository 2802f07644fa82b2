"""Data that comes with its train, val and test rows: they are kept, never cut anew."""

from dataclasses import replace

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.client_names import label_of
from fedtailor.data.options import DataOptions
from fedtailor.data.proportions import rows_by_class
from fedtailor.data.source import SPLITS, Ints, Source
from fedtailor.data.split import Parts

TRAIN, VAL, TEST = range(3)


def keep_split(source: Source, everyone: int, options: DataOptions) -> list[Parts]:
    """Return the train, val and test rows that every client's data came with, in their order."""
    _refuse_cutting(options)
    assert source.client is not None and source.split is not None
    parts = []
    for number, rows in enumerate(rows_by_class(source.client, everyone)):
        train, val, test = (rows[source.split[rows] == part] for part in (TRAIN, VAL, TEST))
        if len(train) < 2 or not len(test):
            who = label_of(source.client_names, number)
            raise UserError(
                f"data.path: client {who} comes with {len(train)} images to train on and "
                f"{len(test)} to test on, but needs 2 and 1 at least, so give it more or take it "
                "out of the data."
            )
        parts.append((train, val, test))
    return parts


def _refuse_cutting(options: DataOptions) -> None:
    """Raise a UserError at an option that would change what every client came with."""
    usual = DataOptions()
    for field in ("fractions", "per_client", "test_per_client", "test_unseen", "split"):
        if getattr(options, field) != getattr(usual, field):
            raise UserError(
                f"data.{field}: this data comes with its train and test rows, which are kept, so "
                'remove it, or deal the images anew by another data.partition than "by_client".'
            )


def with_tests_apart(source: Source) -> Source:
    """Return data that is dealt anew with its test rows as its official test set."""
    if source.split is None:
        return source
    pool, tests = (np.flatnonzero(rows) for rows in (source.split != TEST, source.split == TEST))
    if not len(pool):
        raise UserError("data.path: all rows are test rows, so mark some as train.")
    own: Ints | None = None if source.client is None else source.client[pool]
    there = len(tests) > 0
    return replace(
        source,
        images=source.images[pool],
        labels=source.labels[pool],
        client=own,
        split=None,
        test_images=source.images[tests] if there else None,
        test_labels=source.labels[tests] if there else None,
        notes=(*source.notes, *_told(source.split)),
    )


def _told(split: Ints) -> list[str]:
    val, test = int((split == VAL).sum()), int((split == TEST).sum())
    joined = f", and {val:,} {SPLITS[VAL]} rows are dealt with those to train on" if val else ""
    return [
        f'the data comes with {test:,} test rows, which are used by data.split = "official" only'
        f'{joined}; data.partition = "by_client" keeps every client\'s own'
    ]
