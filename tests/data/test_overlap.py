"""Nobody trains on what anybody chooses by or is tested on, however images are dealt."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import UserError
from fedtailor.data.deal import deal
from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions
from fedtailor.data.overlap import share_images
from fedtailor.data.proportions import count_classes
from fedtailor.data.source import Ints, Source
from fedtailor.data.split import Parts

PAPER = DataOptions(
    clients=100, partition="dirichlet_equal", overlap=True, per_client=800, split="official"
)


def source_of(labels: Ints, tests: Ints, clients: int) -> Source:
    """Return data of empty images, whose clients are named in turn."""
    names = tuple(str(c) for c in range(int(labels.max()) + 1))
    pixels = np.zeros((len(labels) + len(tests), 1, 1, 1), dtype=np.uint8)
    column = np.arange(len(labels)) % clients
    images, rest = pixels[: len(labels)], pixels[len(labels) :]
    everyone = tuple(str(k) for k in range(clients))
    return Source(images, labels, names, (0.5,), (0.5,), rest, tests, column, everyone)


def leaks(parts: list[Parts], clients: int) -> dict[str, float]:
    """Return what part of the rows held by some is also where it must not be, row by row."""
    train, val, test = ({row for own in parts for row in own[k].tolist()} for k in range(3))
    old = {row for own in parts[:clients] for part in own[:2] for row in part.tolist()}
    new = {row for own in parts[clients:] for part in own for row in part.tolist()}
    return {
        "val": len(val & train) / len(val),
        "test": len(test & (train | val)) / len(test),
        "new": len(new & old) / len(new) if new else 0.0,
    }


def paper(**options: Any) -> tuple[list[Parts], int]:
    """Deal labels like CIFAR-10's as the paper's starter configs do."""
    how = DataOptions(**(vars(PAPER) | options))
    source = source_of(np.arange(50_000) % 10, np.arange(10_000) % 10, 1)
    return deal(source, 100, how), 100


def test_the_papers_clients_share_images_but_none_across_splits() -> None:
    parts, clients = paper()
    assert leaks(parts, clients) == {"val": 0, "test": 0, "new": 0}
    train = np.concatenate([own[0] for own in parts])
    assert len(np.unique(train)) < 0.9 * len(train)  # they do share
    assert {(len(a), len(b)) for a, b, _ in parts} == {(600, 200)}
    assert all(len(np.unique(np.r_[a, b])) == 800 for a, b, _ in parts)
    leaky = leaks(*paper(overlap="leaky"))
    assert 0.6 < leaky["val"] < 0.8 and leaky["test"] == 0


@pytest.mark.parametrize("new", [5, 100])
def test_the_papers_new_clients_are_new(new: int) -> None:
    parts, clients = paper(new_clients=new)
    assert leaks(parts, clients) == {"val": 0, "test": 0, "new": 0}
    own = np.concatenate([np.r_[a, b] for a, b, _ in parts[clients:]])
    assert (len(np.unique(own)) == len(own)) == (new == 5)  # half of the images suffices for 5
    assert len(np.unique(own)) <= 25_000
    assert leaks(*paper(new_clients=new, overlap="leaky"))["new"] > 0.6


def test_test_images_of_the_pool_stay_apart() -> None:
    options: dict[str, Any] = {"partition": "dirichlet_equal", "clients": 10, "per_client": 300}
    cases: tuple[tuple[Any, float], ...] = ((True, 0.0), ("leaky", 0.3))
    for overlap, least in cases:
        data = load_federation(DataOptions(overlap=overlap, **options))
        parts = [
            tuple(data.examples(k, s).index.numpy() for s in ("train", "val", "test"))
            for k in range(10)
        ]
        found = leaks(parts, 10)  # pyright: ignore[reportArgumentType]
        assert (found["test"] > least) if least else (found["test"] == found["val"] == 0)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["iid", "dirichlet", "dirichlet_equal", "shards", "by_client"]),
    st.sampled_from(["pool", "official"]),
    st.booleans(),
    st.integers(1, 12),
    st.sampled_from([0, 0, 1, 3, 12]),
    st.sampled_from([None, 6, 20, 90]),
    st.sampled_from([None, 5]),
)
def test_no_image_is_in_two_splits_of_anyone(
    seed: int,
    scheme: Any,
    split: Any,
    overlap: bool,
    clients: int,
    new: int,
    per_client: int | None,
    tests: int | None,
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, 400, p=rng.dirichlet(np.full(4, 5.0)))
    options = DataOptions(
        seed=seed, partition=scheme, split=split, overlap=overlap, new_clients=new,
        per_client=per_client, min_size=6, alpha=0.8,
        test_per_client=tests if split == "official" else None,
    )  # fmt: skip
    try:
        source = source_of(labels, np.arange(200) % 4, clients + new)
        parts = deal(source, clients, options)
    except UserError:
        assume(False)
        raise
    assert len(parts) == clients + new
    assert leaks(parts, clients) == {"val": 0, "test": 0, "new": 0}
    for own in parts:
        joined = np.concatenate(own)
        assert len(np.unique(joined)) == len(joined)
        assert len(own[0]) >= 2 and min(len(part) for part in own) >= 1
        if overlap and scheme == "dirichlet_equal" and split == "pool":
            assert len(joined) == (per_client or 400 // (clients + new))
    if split == "pool" and new:
        old = np.concatenate([np.concatenate(own) for own in parts[:clients]])
        fresh = np.concatenate([np.concatenate(own) for own in parts[clients:]])
        assert not set(old.tolist()) & set(fresh.tolist())  # not even test images


def test_all_splits_of_a_client_follow_its_proportions() -> None:
    """Proportions of a client have the Dirichlet's spread, and its splits have the same ones."""
    labels, alpha = np.repeat(np.arange(5), 8000), 1.0
    options = DataOptions(
        partition="dirichlet_equal", overlap=True, per_client=500, alpha=alpha, new_clients=20
    )
    cuts = share_images(labels, 300, options, np.random.default_rng(0))
    for group, sampled in ((cuts[:300], 1), (cuts[300:], 0)):
        rows = [np.concatenate(cut) for cut in group]
        shares = count_classes(labels, rows, 5) / 500
        spread = 0.2 * 0.8 / (5 * alpha + 1)
        sampling = sampled * (0.16 - spread) / 500
        error = 0.12 if sampled else 0.45  # of 300 and of 20 clients
        assert shares.var() == pytest.approx(spread + sampling, rel=error)
        for k, size in enumerate((300, 100, 100)):
            part = count_classes(labels, [cut[k] for cut in group], 5) / size
            assert np.abs(part - shares).mean() < 2 * np.sqrt(0.16 / size)
            assert np.corrcoef(part.ravel(), shares.ravel())[0, 1] > 0.95


def test_pools_hold_the_same_part_of_every_class() -> None:
    """One client that takes everything shows the pools: three fifths, one and one of each class."""
    labels = np.repeat(np.arange(4), [50, 100, 150, 200])
    options = DataOptions(partition="dirichlet_equal", overlap=True, per_client=500)
    ((train, val, test),) = share_images(labels, 1, options, np.random.default_rng(0))
    found = count_classes(labels, [train, val, test], 4)
    wanted = np.array([[30, 60, 90, 120], [10, 20, 30, 40], [10, 20, 30, 40]])
    assert np.abs(found - wanted).max() <= 2 and found.sum(axis=1).tolist() == [300, 100, 100]
    assert (np.diff(train) < 0).any()  # mixed: batches in order are not of one class


def test_too_many_images_are_refused_with_a_sentence() -> None:
    labels = np.arange(100) % 4
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"per_client": 101}, "data.per_client: 101 images for each of 3 clients"),
        ({"per_client": 60, "new_clients": 1}, "data.per_client: 60 images for each of 1 clients"),
        ({"per_client": 3}, "data.fractions: client 0 has 3 images"),
    )
    for wrong, words in cases:
        options = DataOptions(partition="dirichlet_equal", overlap=True, **wrong)
        with pytest.raises(UserError) as caught:
            share_images(labels, 3, options, np.random.default_rng(0))
        assert str(caught.value).startswith(words) and str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({}, "4b8ec1d1d44adf08"),
        ({"partition": "iid", "new_clients": 2}, "7529d841212fb94d"),
        ({"balance": True, "seed": 3, "per_client": 50}, "4d41c48cb45557a3"),
        ({"partition": "dirichlet_equal", "new_clients": 3}, "6cd8193ded6f1408"),
        ({"partition": "shards", "clients": 7}, "7f3a4c512f1a9d52"),
        (
            {"partition": "dirichlet_equal", "overlap": "leaky", "per_client": 300},
            "d77e9d3242b2bbbf",
        ),
    ],
)
def test_partitions_of_the_digits_stay_what_they_were(options: Any, known: str) -> None:
    """Results of one version must be those of the next: to the row."""
    data = load_federation(DataOptions(**options))
    found = hashlib.sha256(data.rows.numpy().tobytes() + data.bounds.numpy().tobytes())
    assert found.hexdigest()[:16] == known


def test_only_a_leak_is_warned_of() -> None:
    assert PAPER.warnings() == DataOptions(overlap="leaky").warnings() == ()
    (text,) = DataOptions(partition="dirichlet_equal", overlap="leaky").warnings()
    assert text.startswith('data.overlap: "leaky" ') and not text.endswith(".")
