"""How learning rates rise and fall."""

import math


def rise(step: int, warmup: int) -> float:
    """Return the share of the learning rate in a step, counted from 0, of those that warm up."""
    return min(1.0, (step + 1) / max(warmup, 1))


def cosine(done: float, of: float = 1.0) -> float:
    """Return the share that is left of a learning rate that falls along half a cosine."""
    return (1 + math.cos(math.pi * done / of)) / 2
