"""Train, val and test of every client."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.proportions import count_classes
from fedtailor.data.source import Ints
from fedtailor.data.split import split


def rows_of(*sizes: int) -> list[Ints]:
    """Return consecutive rows for clients of these sizes."""
    edges = np.cumsum([0, *sizes])
    return [np.arange(a, b) for a, b in itertools.pairwise(edges)]


def pool(*sizes: int, **options: Any) -> list[tuple[int, int, int]]:
    """Split, and return the sizes of the parts."""
    shares = rows_of(*sizes)
    parts = split(shares, np.zeros(sum(sizes), dtype=np.int64), None, DataOptions(**options))
    for share, client in zip(shares, parts, strict=True):
        assert np.array_equal(np.sort(np.concatenate(client)), share)
    return [(len(a), len(b), len(c)) for a, b, c in parts]


def test_sizes_by_hand() -> None:
    assert pool(4, 10, 100) == [(2, 1, 1), (6, 2, 2), (60, 20, 20)]
    assert pool(10, fractions=(0.8, 0.1, 0.1)) == [(8, 1, 1)]


@given(st.integers(4, 500))
def test_everyone_with_four_images_has_all_three(size: int) -> None:
    ((train, val, test),) = pool(size)
    assert train >= 2 and val >= 1 and test >= 1
    assert abs(val - 0.2 * size) <= 0.8 and val == test


def test_too_few_images_name_the_client() -> None:
    with pytest.raises(UserError, match=r"^data\.fractions: client 1 has 3 images"):
        pool(4, 3)
    with pytest.raises(UserError, match=r"client 0 has 8 images, of which 0 would"):
        pool(8, fractions=(0.1, 0.45, 0.45))


@pytest.mark.parametrize("bad", [(0.6, 0.2, 0.3), (1.0, 0.0, 0.0), (float("nan"), 0.5, 0.5)])
def test_bad_fractions(bad: tuple[float, float, float]) -> None:
    with pytest.raises(UserError, match=r"^data\.fractions: "):
        pool(10, fractions=bad)


def test_split_is_shuffled_by_seed_and_client() -> None:
    labels = np.zeros(100, dtype=np.int64)
    shares = [np.arange(50), np.arange(50)]
    one, two = split(shares, labels, None, DataOptions())
    again, _ = split(shares, labels, None, DataOptions())
    other, _ = split(shares, labels, None, DataOptions(seed=1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[2], two[2])
    assert not np.array_equal(one[2], other[2])


@pytest.mark.parametrize("how", ["pool", "official"])
def test_sorted_data_give_every_part_all_classes(how: str) -> None:
    """Files sorted by class are common; a validation set of one class would choose by it alone."""
    labels = np.repeat(np.arange(4), 50)
    tests = np.tile(np.arange(4), 10) if how == "official" else None
    ((train, val, test),) = split(
        [np.arange(200)],
        labels,
        tests,
        DataOptions(split=how),  # pyright: ignore[reportArgumentType]
    )
    everything = labels if tests is None else np.r_[labels, tests]
    for part in (train, val, test):
        assert set(everything[part].tolist()) == {0, 1, 2, 3}


def official(
    shares: list[Ints], labels: Ints, test_labels: Ints, **options: Any
) -> tuple[Ints, list[tuple[Ints, Ints, Ints]]]:
    """Split with official test rows; return each client's test counts and all parts."""
    parts = split(shares, labels, test_labels, DataOptions(split="official", **options))
    tests = [test - len(labels) for _, _, test in parts]
    assert min(test.min() for test in tests) >= 0
    return count_classes(test_labels, tests, int(labels.max()) + 1), parts


def test_official_tests_are_disjoint_and_in_proportion() -> None:
    labels = np.repeat(np.arange(3), [50, 100, 150])
    test_labels = np.tile(np.arange(3), 30)
    shares = [
        np.r_[0:50, 50:60],  # all of class 0, a tenth of class 1
        np.r_[60:150],  # the rest of class 1
        np.r_[150:300],  # class 2
    ]
    counts, parts = official(shares, labels, test_labels)
    assert counts.tolist() == [[30, 3, 0], [0, 27, 0], [0, 0, 30]]
    tests = np.concatenate([test for _, _, test in parts])
    assert len(np.unique(tests)) == len(tests) == 90
    train, val, _ = parts[0]
    assert (len(train), len(val)) == (45, 15)
    assert np.array_equal(np.sort(np.r_[train, val]), shares[0])


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_official_tests_follow_any_partition(seed: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    labels, test_labels = rng.permutation(np.arange(400) % 4), rng.permutation(np.arange(200) % 4)
    owner = rng.choice(clients, 400)
    owner[: 3 * clients] = np.repeat(np.arange(clients), 3)
    shares = [np.flatnonzero(owner == k) for k in range(clients)]
    counts, parts = official(shares, labels, test_labels)
    tests = np.concatenate([test for _, _, test in parts])
    assert len(np.unique(tests)) == len(tests) == 200
    assert np.abs(counts - count_classes(labels, shares, 4) / 2).max() < 1


def test_official_gives_everyone_at_least_one() -> None:
    labels = np.zeros(40, dtype=np.int64)
    shares = rows_of(*[4] * 9)
    counts, parts = official(shares, labels, np.zeros(12, dtype=np.int64))
    assert (counts >= 1).all()
    tests = np.concatenate([test for _, _, test in parts])
    assert len(np.unique(tests)) == len(tests)
    with pytest.raises(UserError, match=r"^data\.split: .*data\.test_per_client"):
        official(shares, labels, np.zeros(8, dtype=np.int64))


def test_official_tests_per_client_may_be_shared() -> None:
    labels = np.repeat([0, 1], 50)
    test_labels = np.repeat([0, 1], 20)
    shares = [np.arange(0, 60), np.arange(60, 100)]  # 5/6 and 1/6; only class 1
    counts, parts = official(shares, labels, test_labels, test_per_client=12)
    assert counts.tolist() == [[10, 2], [0, 12]]
    assert all(len(np.unique(test)) == 12 for _, _, test in parts)
    with pytest.raises(UserError, match=r"^data\.test_per_client: client 1 needs 21 test images"):
        official(shares, labels, test_labels, test_per_client=21)


def test_official_tests_of_overlapping_clients() -> None:
    """Clients that share training images cannot have test sets of their own: they share too."""
    labels, test_labels = np.repeat([0, 1], 50), np.repeat([0, 1], 10)
    shares = [np.arange(0, 50)] * 3 + [np.arange(25, 75)] * 3
    counts, _ = official(shares, labels, test_labels)
    assert counts.tolist() == [[10, 0]] * 3 + [[5, 5]] * 3


def test_official_needs_a_test_set_and_pool_no_test_size() -> None:
    with pytest.raises(UserError, match=r"^data\.split: "):
        split(rows_of(10), np.zeros(10, dtype=np.int64), None, DataOptions(split="official"))
    with pytest.raises(UserError, match=r"^data\.test_per_client: "):
        pool(10, test_per_client=3)
    with pytest.raises(UserError, match=r"client 0 has 2 images.*at least 3"):
        official(rows_of(2), np.zeros(4, dtype=np.int64), np.zeros(2, dtype=np.int64))
