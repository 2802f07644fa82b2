"""Partitions: what each scheme promises, for any labels and numbers of clients."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.partition import partition
from fedtailor.data.partition_fit import fit_counts
from fedtailor.data.proportions import assign_rows, count_classes, largest_remainder, rows_by_class
from fedtailor.data.source import Ints

seeds = st.integers(0, 2**32)


def run(
    labels: Ints, clients: int, seed: int = 0, column: Ints | None = None, **options: Any
) -> list[Ints]:
    """Partition with a fresh generator, after checking that a second time gives the same."""
    given_options = DataOptions(**options)
    first, again = (
        partition(labels, clients, given_options, np.random.default_rng(seed), column)
        for _ in range(2)
    )
    assert len(first) == len(again) == clients
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert all((np.diff(rows) > 0).all() for rows in first)  # sorted, and no row twice
    return first


def labels_of(seed: int, size: int, classes: int) -> Ints:
    """Draw labels whose classes differ in size."""
    rng = np.random.default_rng(seed)
    return rng.choice(classes, size, p=rng.dirichlet(np.full(classes, 2.0)))


def assert_disjoint(shares: list[Ints], rows: int, *, complete: bool) -> None:
    """Assert that no two clients share a row, and perhaps that all rows are dealt."""
    joined = np.sort(np.concatenate(shares))
    assert len(np.unique(joined)) == len(joined)
    assert joined[0] >= 0 and joined[-1] < rows
    if complete:
        assert np.array_equal(joined, np.arange(rows))


@given(seeds, st.integers(1, 40), st.integers(40, 300))
def test_iid_deals_everything_in_equal_parts(seed: int, clients: int, size: int) -> None:
    shares = run(labels_of(seed, size, 5), clients, seed, partition="iid")
    assert_disjoint(shares, size, complete=True)
    sizes = [len(rows) for rows in shares]
    assert max(sizes) - min(sizes) <= 1


def test_iid_clients_look_like_the_whole() -> None:
    labels = np.repeat(np.arange(4), 5000)
    counts = count_classes(labels, run(labels, 10, partition="iid"), 4)
    assert np.abs(counts / counts.sum(axis=1, keepdims=True) - 0.25).max() < 0.04


@given(seeds, st.integers(1, 12), st.floats(0.2, 100), st.booleans())
@settings(deadline=None)
def test_dirichlet_deals_everything(seed: int, clients: int, alpha: float, balance: bool) -> None:
    labels = labels_of(seed, 400, 6)
    shares = run(labels, clients, seed, alpha=alpha, min_size=1, balance=balance)
    assert_disjoint(shares, len(labels), complete=True)
    assert min(len(rows) for rows in shares) >= 1


@given(seeds, st.integers(1, 8), st.integers(1, 30))
@settings(deadline=None)
def test_dirichlet_keeps_the_minimum(seed: int, clients: int, least: int) -> None:
    shares = run(labels_of(seed, 600, 6), clients, seed, alpha=1.0, min_size=least)
    assert min(len(rows) for rows in shares) >= least


def test_dirichlet_concentration_follows_alpha() -> None:
    labels = np.repeat(np.arange(10), 1000)
    tops = []
    for alpha in (0.05, 0.5, 50.0):
        counts = count_classes(labels, run(labels, 20, alpha=alpha, min_size=1), 10)
        tops.append((counts.max(axis=0) / counts.sum(axis=0)).mean())
    assert tops[0] > tops[1] + 0.1 and tops[1] > tops[2] + 0.1
    assert tops[2] < 0.1  # nearly 1/20 each


def test_dirichlet_shares_have_the_right_spread() -> None:
    """A share of Dir(a) over K clients has mean 1/K and variance (1/K)(1-1/K)/(Ka+1)."""
    labels = np.repeat(np.arange(200), 500)
    clients, alpha = 10, 0.5
    counts = count_classes(labels, run(labels, clients, alpha=alpha, min_size=1), 200)
    shares = counts / 500
    assert abs(shares.var() - 0.1 * 0.9 / (clients * alpha + 1)) < 0.0015


def test_balance_stops_clients_that_have_their_share() -> None:
    labels = np.repeat(np.arange(10), 200)
    for seed in range(5):
        shares = run(labels, 10, seed, alpha=0.3, min_size=1, balance=True)
        counts = count_classes(labels, shares, 10)
        before = np.cumsum(counts, axis=1) - counts
        assert (counts[before >= len(labels) / 10] == 0).all()
        assert (before >= len(labels) / 10).any()  # the rule had something to do
    unbalanced = count_classes(labels, run(labels, 10, alpha=0.3, min_size=1), 10)
    before = np.cumsum(unbalanced, axis=1) - unbalanced
    assert (unbalanced[before >= len(labels) / 10] > 0).any()


@given(seeds, st.integers(1, 30), st.floats(0.05, 100), st.integers(0, 30))
@settings(deadline=None)
def test_dirichlet_equal_is_disjoint_and_equal(
    seed: int, clients: int, alpha: float, spare: int
) -> None:
    labels = labels_of(seed, 300, 6)
    size = max(1, 300 // clients - spare)
    shares = run(labels, clients, seed, partition="dirichlet_equal", alpha=alpha, per_client=size)
    assert [len(rows) for rows in shares] == [size] * clients
    assert_disjoint(shares, 300, complete=False)


def test_dirichlet_equal_takes_all_it_can() -> None:
    shares = run(np.repeat(np.arange(3), 34), 10, partition="dirichlet_equal")
    assert [len(rows) for rows in shares] == [10] * 10


@pytest.mark.parametrize("overlap", [False, "leaky"])
def test_dirichlet_equal_proportions(overlap: bool | str) -> None:
    """With images to spare, proportions are those of the Dirichlet: mean 1/C, known variance."""
    labels = np.repeat(np.arange(10), 4000)
    for alpha in (0.1, 1.0, 10.0):
        shares = run(
            labels, 300, partition="dirichlet_equal", alpha=alpha, per_client=50, overlap=overlap
        )
        parts = count_classes(labels, shares, 10) / 50
        spread = 0.1 * 0.9 / (10 * alpha + 1)
        sampling = (0.09 - spread) / 50 if overlap else 0.0
        assert np.abs(parts.mean(axis=0) - 0.1).max() < 5 * np.sqrt((spread + sampling) / 300)
        assert parts.var() == pytest.approx(spread + sampling, rel=0.12, abs=2e-4)


def test_dirichlet_equal_overlap_shares_rows_but_not_within_a_client() -> None:
    shares = run(
        np.repeat(np.arange(5), 20), 10, partition="dirichlet_equal", overlap="leaky", per_client=60
    )
    assert [len(rows) for rows in shares] == [60] * 10
    assert len(np.unique(np.concatenate(shares))) < 600


def test_overlap_draws_as_weighted_sampling_without_replacement() -> None:
    """Against numpy's own weighted choice, one row at a time, for a given weight."""
    labels = np.array([0] * 4 + [1] * 8)
    rng = np.random.default_rng(0)
    ours, theirs = [], []
    for seed in range(3000):
        (rows,) = partition(
            labels,
            1,
            DataOptions(partition="dirichlet_equal", overlap="leaky", per_client=6, alpha=1.0),
            np.random.default_rng(seed),
            None,
        )
        ours.append((labels[rows] == 0).sum())
        weight = np.random.default_rng(seed).dirichlet([1.0, 1.0])[labels]
        drawn = rng.choice(12, 6, replace=False, p=weight / weight.sum())
        theirs.append((labels[drawn] == 0).sum())
    ours_at, theirs_at = np.bincount(ours, minlength=5), np.bincount(theirs, minlength=5)
    assert np.abs(ours_at - theirs_at).max() / 3000 < 0.05


@given(seeds, st.integers(1, 20), st.integers(1, 6), st.integers(0, 9))
@settings(deadline=None)
def test_shards_hold_exactly_their_classes(seed: int, clients: int, each: int, extra: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(6), 400))
    per_client = None if extra == 0 else 6 + extra
    shares = run(
        labels,
        clients,
        seed,
        partition="shards",
        classes_per_client=each,
        per_client=per_client,
    )
    counts = count_classes(labels, shares, 6)
    assert ((counts > 0).sum(axis=1) == each).all()
    users = (counts > 0).sum(axis=0)
    assert users.max() - users.min() <= 1
    assert len(set(counts.sum(axis=1))) == 1
    assert per_client is None or counts[0].sum() == per_client
    held = np.where(counts > 0, counts, counts.max())
    assert counts.max() - held.min() <= 1
    assert_disjoint(shares, len(labels), complete=False)


def test_shards_by_hand() -> None:
    """Ten classes of 6, five clients of two classes: every class has one owner, who has it all."""
    labels = np.repeat(np.arange(10), 6)
    shares = run(labels, 5, partition="shards", classes_per_client=2)
    assert_disjoint(shares, 60, complete=True)
    assert [len(rows) for rows in shares] == [12] * 5


def test_shards_skip_a_class_without_images() -> None:
    labels = np.array([0, 0, 0, 0, 2, 2, 2, 2])
    shares = run(labels, 2, partition="shards", classes_per_client=2)
    assert [len(rows) for rows in shares] == [4, 4]


def test_by_client_follows_the_column() -> None:
    column = np.array([2, 0, 1, 0, 2, 2])
    shares = run(np.zeros(6, dtype=np.int64), 3, column=column, partition="by_client")
    assert [rows.tolist() for rows in shares] == [[1, 3], [2], [0, 4, 5]]
    fewer = run(np.zeros(6, dtype=np.int64), 2, column=column, partition="by_client")
    assert [rows.tolist() for rows in fewer] == [[1, 3], [2]]


@pytest.mark.parametrize("scheme", ["dirichlet", "by_client"])
def test_per_client_is_an_upper_bound(scheme: str) -> None:
    labels = labels_of(3, 300, 5)
    column = np.repeat(np.arange(4), [10, 20, 70, 200])
    free, bound = (
        run(labels, 4, column=column, partition=scheme, min_size=1, per_client=per_client)
        for per_client in (None, 40)
    )
    for all_rows, rows in zip(free, bound, strict=True):
        assert len(rows) == min(len(all_rows), 40)
        assert set(rows) <= set(all_rows)


def test_per_client_is_exact_for_iid() -> None:
    shares = run(labels_of(0, 100, 3), 7, partition="iid", per_client=13)
    assert [len(rows) for rows in shares] == [13] * 7
    assert_disjoint(shares, 100, complete=False)


@pytest.mark.parametrize(
    ("clients", "options", "words"),
    [
        (50, {"min_size": 10}, "data.min_size: 50 clients"),
        (9, {"min_size": 22, "alpha": 0.01}, "data.min_size: 1000 draws with alpha = 0.01"),
        (300, {"partition": "iid"}, "data.clients: 300 clients with 1 images"),
        (4, {"partition": "iid", "per_client": 51}, "data.per_client: 4 clients with 51"),
        (4, {"partition": "dirichlet_equal", "per_client": 51}, "data.per_client: "),
        (
            4,
            {"partition": "dirichlet_equal", "per_client": 201, "overlap": "leaky"},
            "data.per_client: 201 is more than the 200 images",
        ),
        (4, {"partition": "shards", "classes_per_client": 6}, "data.classes_per_client: 6"),
        (4, {"partition": "shards", "per_client": 1}, "data.classes_per_client: 2 is more"),
        (4, {"partition": "shards", "per_client": 60}, "data.per_client: 4 clients with 2"),
        (150, {"partition": "shards"}, "data.per_client: 150 clients with 2 classes and one"),
        (4, {"partition": "by_client"}, "data.partition: by_client"),
    ],
)
def test_the_impossible_fails_soon_with_a_sentence(
    clients: int, options: dict[str, Any], words: str
) -> None:
    begin = time.perf_counter()
    with pytest.raises(UserError) as caught:
        run(np.repeat(np.arange(5), 40), clients, **options)
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith(".")
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "dirichlet_equal", "shards"])
def test_many_clients_take_seconds(scheme: str) -> None:
    labels = np.random.default_rng(0).integers(10, size=200_000)
    begin = time.perf_counter()
    options = DataOptions(partition=scheme, min_size=1)  # pyright: ignore[reportArgumentType]
    shares = partition(labels, 5000, options, np.random.default_rng(0), None)
    assert len(shares) == 5000
    assert time.perf_counter() - begin < 5


def test_seeds_differ() -> None:
    labels = labels_of(0, 200, 4)
    for scheme in ("iid", "dirichlet", "dirichlet_equal", "shards"):
        one, two = (run(labels, 4, seed, partition=scheme, min_size=1) for seed in (0, 1))
        assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@given(seeds, st.integers(1, 12), st.integers(1, 8), st.floats(0.01, 5))
@settings(deadline=None)
def test_fit_counts_keeps_both_sums(seed: int, clients: int, classes: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    totals = rng.integers(0, 30, classes)
    size = int(totals.sum()) // clients
    assume(size > 0)
    shares = rng.dirichlet(np.full(classes, alpha), size=clients)
    counts = fit_counts(shares, size, totals, rng)
    assert (counts >= 0).all()
    assert (counts.sum(axis=1) == size).all()
    assert (counts.sum(axis=0) <= totals).all()


def test_fit_counts_by_hand() -> None:
    """What fits is kept as it is; what does not is shared by those who wanted it."""
    rng = np.random.default_rng(0)
    wanted = np.array([[0.5, 0.5], [0.25, 0.75]])
    assert fit_counts(wanted, 4, np.array([9, 9]), rng).tolist() == [[2, 2], [1, 3]]
    greedy = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert fit_counts(greedy, 4, np.array([4, 4]), rng).tolist() == [[2, 2], [2, 2]]


def test_fit_counts_changes_no_odds() -> None:
    """Fitting scales rows and columns, so the ratio of two clients' odds stays as it was drawn."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(4, 3.0), size=3)
    counts = fit_counts(shares, 4_000_000, np.full(4, 3_000_000), rng)

    def odds(table: np.ndarray) -> np.ndarray:
        ratio = table[:, 1:] / table[:, :1]
        return ratio[1:] / ratio[:1]

    assert odds(counts) == pytest.approx(odds(shares), rel=1e-3)


def test_deal_gives_random_rows() -> None:
    counts = np.array([[50], [50]])
    first = assign_rows(np.zeros(100, dtype=np.int64), counts, np.random.default_rng(0))[0]
    assert 10 < (first < 50).sum() < 40


def test_deal_and_largest_remainder_by_hand() -> None:
    labels = np.array([0, 1, 0, 1, 1])
    shares = assign_rows(labels, np.array([[1, 2], [1, 0]]), np.random.default_rng(0))
    assert count_classes(labels, shares, 2).tolist() == [[1, 2], [1, 0]]
    assert [rows.tolist() for rows in rows_by_class(labels, 3)] == [[0, 2], [1, 3, 4], []]
    assert largest_remainder(np.array([1.5, 0.7, 1.8]), 4).tolist() == [1, 1, 2]
