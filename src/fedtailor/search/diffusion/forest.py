"""Which tokens depend on which, measured: a forest of pairs.

Chow and Liu 1968: of all distributions in which tokens depend on each other along a tree, the one
nearest to given architectures has the tree of the largest mutual informations. Here only pairs are
linked whose dependence is beyond chance, so the tree is a forest, mostly of few and short branches:
the rules of a space are local.
"""

from dataclasses import dataclass

import torch
from scipy.special import chdtri
from torch import Tensor
from torch.nn import functional as F

CHANCE = 1e-6  # that two independent tokens are linked
CHUNK = 10_000  # architectures that are counted at once


@dataclass(frozen=True, eq=False)
class Forest:
    """A parent for each token, itself where it has none, and what they have to do with each other.

    `ratios` (tokens, values, parent's values) are P(value, parent's) / P(value) P(parent's), 1
    where there is no parent.
    """

    parents: Tensor
    ratios: Tensor


def bare(length: int, vocabulary: int) -> Forest:
    """Return the forest of independent tokens."""
    return Forest(torch.arange(length), torch.ones(length, vocabulary, vocabulary))


def measure(values: Tensor, shares: Tensor) -> Forest:
    """Return the forest of architectures.

    Args:
        values: of their tokens, (n, tokens).
        shares: how often tokens have values, (tokens, vocabulary), 0 only where it is impossible.
    """
    number, (length, size) = len(values), shares.shape
    both = torch.zeros(length * size, length * size, dtype=torch.float64)
    for part in values.split(CHUNK):
        ones = F.one_hot(part, size).flatten(1).float()
        both += ones.T @ ones
    apart = shares.double().flatten()[:, None] * shares.double().flatten()
    both = (both + apart) / (number + 1)  # as if one more were independent: nothing is impossible
    ratios = torch.where(apart > 0, both / apart, 1.0)
    information = (both * ratios.log()).view(length, size, length, size).sum((1, 3))
    freedom = ((shares > 0).sum(1) - 1).clamp(min=1)
    needed = torch.from_numpy(chdtri((freedom[:, None] * freedom).numpy(), CHANCE))
    parents = _spanning(torch.where(2 * number * information > needed, information, 0.0))
    blocks = ratios.view(length, size, length, size)[torch.arange(length), :, parents]
    alone = parents == torch.arange(length)
    return Forest(parents, blocks.masked_fill(alone[:, None, None], 1.0).float())


def messages(forest: Forest, chances: Tensor) -> Tensor:
    """Return what parents and children tell of a token: to be added to its log-probabilities.

    Exact where tokens depend on each other along the forest, and those two links away tell nothing.

    Args:
        forest: who tells whom.
        chances: the probabilities of values by each token's own evidence, (n, tokens, vocabulary).
    """
    apart = chances.transpose(0, 1)
    down = torch.bmm(apart[forest.parents], forest.ratios.transpose(1, 2)).log()
    up = torch.bmm(apart, forest.ratios).log()
    return down.index_add(0, forest.parents, up).transpose(0, 1)


def _spanning(weights: Tensor) -> Tensor:
    """Return the parents in the forest of the largest total of positive weights (Prim)."""
    length = len(weights)
    parents, best, out = torch.arange(length), torch.zeros(length), torch.ones(length).bool()
    best = best.to(weights.dtype)
    for _ in range(length):
        token = int(best.masked_fill(~out, -1.0).argmax())
        out[token] = False
        nearer = out & (weights[token] > best)
        best = torch.where(nearer, weights[token], best)
        parents[nearer] = token
    return parents
