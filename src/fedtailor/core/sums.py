"""Sums of floats that are the same to the bit on every version of Python."""

from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the mean, added from the left; 0 of nothing.

    From 3.12 on, `sum` makes up for the rounding of floats, so that whatever is committed or
    decided by such a sum would differ from what 3.11 says.
    """
    total = 0.0
    for value in values:
        total += value
    return total / max(len(values), 1)
