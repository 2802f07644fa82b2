"""Randomness is a key, not a stream: every draw is named by what it is for.

Two draws with different keys are independent, and a draw never depends on how many draws came
before it, so results cannot depend on workers, their order, the engine or a restart.
"""

import hashlib

import numpy as np
import torch


def seed_for(seed: int, *keys: int | str) -> int:
    """Return the 64-bit seed of a key."""
    text = "\x1f".join([str(seed), *(f"{type(key).__name__}:{key}" for key in keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def rng_for(seed: int, *keys: int | str) -> torch.Generator:
    """Return torch's CPU generator of a key: draw on the CPU, then move, so that devices agree."""
    return torch.Generator().manual_seed(seed_for(seed, *keys))


def numpy_rng_for(seed: int, *keys: int | str) -> np.random.Generator:
    """Return numpy's generator of a key."""
    return np.random.default_rng(seed_for(seed, *keys))
