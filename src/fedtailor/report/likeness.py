"""Theorem 1 of PerFedRLNAS, measured: do clients with closer data get closer policies?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr

from fedtailor.report.facts import label_counts
from fedtailor.report.search_facts import what_is_known
from fedtailor.runs.folder import Run

Floats = NDArray[np.float64]
FEWEST = 4  # clients: fewer can hardly be exchanged
MOST = 150  # clients: all pairs of more would take long
PERMUTATIONS = 1999
Distance = Callable[[Sequence[Floats]], Floats]  # of all pairs, from each choice's probabilities


@dataclass(frozen=True)
class Likeness:
    """All pairs of clients, and how their two distances go together."""

    clients: list[int]
    labels: Floats  # of every pair, distance of the label distributions
    policies: Floats  # of every pair, distance of the policies
    correlation: float | None  # Spearman's; None where all distances are the same
    p: float | None  # of a correlation as high if clients' policies were dealt at random


def likeness(run: Run, distance: Distance | None = None) -> Likeness | None:
    """Compare the clients that have a policy or an archive of their own; None if too few have."""
    counts, found = label_counts(run), what_is_known(run).get("clients", {})
    clients = list(found)[:MOST]
    if counts is None or len(clients) < FEWEST or max(clients) >= len(counts.counts):
        return None
    rows = [found[client]["probabilities"] for client in clients]
    chances = [np.array([row[choice] for row in rows]) for choice in rows[0]]
    return compare(clients, counts.counts[clients], chances, distance or leanings)


def compare(
    clients: list[int],
    counts: NDArray[np.int64],
    chances: Sequence[Floats],
    distance: Distance,
    permutations: int = PERMUTATIONS,
) -> Likeness:
    """Correlate the distances of labels with those of policies, over all pairs of clients.

    The p-value is one-sided, by Mantel's test: pairs that share a client are not independent, so
    clients are exchanged, not pairs. Always the same exchanges are tried.

    Args:
        clients: their numbers.
        counts: of each client (row) its images of each class.
        chances: of each choice the clients' (row) probabilities of its options.
        distance: of the policies: `leanings` or `variations`.
        permutations: exchanges to try.
    """
    labels, policies = label_distances(counts), distance(chances)
    pairs = np.triu_indices(len(clients), 1)
    found = labels[pairs].round(12), policies[pairs].round(12)  # equal distances must be ties
    if any(np.ptp(distances) == 0 for distances in found):
        return Likeness(clients, *found, None, None)
    one, other = (_ranks(distances, len(clients)) for distances in found)
    correlation = _product(one, other)
    rng, higher = np.random.default_rng(0), 0
    for _ in range(permutations):
        order = rng.permutation(len(clients))
        exchanged = other.take(order, axis=0).take(order, axis=1)
        higher += _product(one, exchanged) >= correlation - 1e-12
    return Likeness(clients, *found, correlation, (1 + int(higher)) / (1 + permutations))


def label_distances(counts: NDArray[np.int64]) -> Floats:
    """Return the Jensen-Shannon distance of all pairs of rows: 0 the same, 1 nothing in common."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    rows = []
    for row in shares:
        middle = (row + shares) / 2
        bits = (rel_entr(row, middle) + rel_entr(shares, middle)).sum(axis=1) / 2 / np.log(2)
        rows.append(np.sqrt(np.clip(bits, 0, 1)))
    return np.stack(rows)


def leanings(chances: Sequence[Floats]) -> Floats:
    """Return how differently policies lean, of all pairs of clients: 0 alike, 1 unrelated, 2 apart.

    It is 1 less the cosine of probabilities less those of an undecided policy: the paper's inner
    product without what all policies have in common, and without how decided they are.
    """
    leaning = np.concatenate([p - 1 / p.shape[1] for p in chances], axis=1)
    lengths = np.linalg.norm(leaning, axis=1, keepdims=True)
    leaning = np.divide(leaning, lengths, out=np.zeros_like(leaning), where=lengths > 0)
    return 1 - leaning @ leaning.T


def variations(chances: Sequence[Floats]) -> Floats:
    """Return the total variation distance, a mean over choices, of all pairs of clients.

    It grows with how decided policies are, whatever for: clients with a few classes, who are far
    from the others, also have the larger rewards, which alone can make it correlate with labels.
    """
    return np.mean([np.abs(p[:, None] - p[None]).sum(axis=2) / 2 for p in chances], axis=0)


def _product(one: Floats, other: Floats) -> float:
    """Return the sum of the products of all pairs, each of which is there twice.

    Not by BLAS, whose threads wait for each other at so small a task.
    """
    return float(np.einsum("ij,ij->", one, other)) / 2


def _ranks(distances: Floats, clients: int) -> Floats:
    """Return a matrix of the pairs' ranks, scaled so that products sum to a correlation."""
    _, place, equal = np.unique(distances, return_inverse=True, return_counts=True)
    ranks = (equal.cumsum() - (equal - 1) / 2)[place]  # scipy.stats would take long to import
    ranks -= ranks.mean()
    ranks /= np.sqrt((ranks**2).sum())
    matrix = np.zeros((clients, clients))
    matrix[np.triu_indices(clients, 1)] = ranks
    return matrix + matrix.T
