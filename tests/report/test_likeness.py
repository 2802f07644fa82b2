"""Theorem 1 as a number: it finds what is there, and nothing where there is nothing."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedtailor.report.likeness import (
    Floats,
    compare,
    label_distances,
    leanings,
    likeness,
    variations,
)
from fedtailor.runs.folder import Run
from tests.helpers.sample_runs import made_up


def policies(
    rng: np.random.Generator, clients: int, strength: Floats | float = 2.0
) -> list[Floats]:
    """Draw policies of ten choices with three options."""
    scale = np.broadcast_to(strength, (clients,))[:, None]
    alphas = [scale * rng.standard_normal((clients, 3)) for _ in range(10)]
    return [np.exp(a) / np.exp(a).sum(axis=1, keepdims=True) for a in alphas]


def test_like_labels_with_like_policies_correlate():
    rng = np.random.default_rng(0)
    for groups, least in ((2, 0.999), (4, 0.3)):  # of more, some are closer than others
        group = np.repeat(np.arange(groups), 20 // groups)
        counts = rng.integers(0, 50, size=(groups, 10))[group]
        chances = [p[group] for p in policies(rng, groups)]
        found = compare(list(range(20)), counts, chances, leanings)
        assert found.correlation is not None and found.correlation > least
        assert found.p is not None and found.p < 0.01
        assert not found.policies[found.labels == 0].any()


def test_unrelated_policies_do_not_correlate():
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 50, size=(20, 10))
    found = compare(list(range(20)), counts, policies(rng, 20), leanings)
    assert found.correlation is not None and abs(found.correlation) < 0.25
    assert found.p is not None and found.p > 0.05
    assert found.correlation == pytest.approx(spearmanr(found.labels, found.policies)[0])


def test_how_decided_policies_are_is_no_likeness():
    """Clients with few classes have large rewards: their policies are decided, but on noise."""
    rng = np.random.default_rng(2)
    skew = np.linspace(0.05, 1.0, 30)
    counts = np.array([rng.multinomial(500, rng.dirichlet([1 / s] * 10)) for s in 3 * skew**2])
    chances = policies(rng, 30, 3 * skew)
    fooled = compare(list(range(30)), counts, chances, variations)
    found = compare(list(range(30)), counts, chances, leanings)
    assert fooled.correlation is not None and fooled.correlation > 0.4
    assert found.correlation is not None and abs(found.correlation) < 0.2


def test_distances():
    labels = label_distances(np.array([[4, 0], [2, 0], [0, 3], [1, 1]]))
    assert labels[0] == pytest.approx([0, 0, 1, np.sqrt(1.5 - 0.75 * np.log2(3))])
    two = [np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.75, 0.25]])]
    assert variations(two)[0] == pytest.approx([0, 1, 0.5, 0.25])
    assert leanings(two)[0] == pytest.approx([0, 2, 1, 0])


def test_equal_policies_have_no_correlation():
    counts = np.random.default_rng(0).integers(1, 9, size=(5, 10))
    found = compare(list(range(5)), counts, [np.full((5, 2), 0.5)], leanings)
    assert (found.correlation, found.p) == (None, None)


def test_of_a_run(tmp_path: Path, fedavg: Run):
    found = likeness(made_up(tmp_path / "run", clients=12, rounds=1))
    assert found is not None and found.clients == list(range(12))
    assert len(found.labels) == len(found.policies) == 66
    assert found.correlation is not None and found.correlation > 0.3
    assert likeness(made_up(tmp_path / "few", clients=3, rounds=1)) is None
    assert likeness(fedavg) is None
