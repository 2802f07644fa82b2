"""Comparisons of made-up runs, by hand."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedtailor.runs import comparison
from fedtailor.runs.folder import Run
from fedtailor.runs.schema import SCHEMA


def folder(
    path: Path, values: list[float], seed: int = 0, name: str = "fedavg", **more: Any
) -> Run:
    """Write a run folder of clients' accuracies after one round."""
    path.mkdir()
    algorithm = {"name": name, "lr": 0.1} | more.pop("algorithm", {})
    config = {"seed": seed, "rounds": 1, "algorithm": algorithm, "space": {"name": "cnn"}}
    (path / "config.toml").write_text(tomli_w.dumps(config | {"data": {"name": "digits"}} | more))
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        db.executescript(SCHEMA)
        rows = [(1, client, "test", "untuned", "accuracy", v) for client, v in enumerate(values)]
        db.executemany("INSERT INTO metric VALUES (?, ?, ?, ?, ?, ?)", rows)
        db.execute("INSERT INTO event VALUES (1, NULL, 'models', '[\"untuned\"]', 0)")
    return Run(path)


BOUNDS = ((0, 6, 8, 10), (10, 16, 18, 21))


def images(run: Run, first: int, bounds: Any = BOUNDS, order: Any = range(21)) -> None:
    rows = first + np.array(order)
    np.savez(run.path / "partition.npz", bounds=np.array(bounds), rows=rows)


def test_seeds_are_one_group_and_average_by_client(tmp_path: Path):
    runs = [
        folder(tmp_path / "a", [0.2, 0.6], seed=0, engine={"workers": 2}),
        folder(tmp_path / "b", [0.5, 0.5], name="local"),
        folder(tmp_path / "c", [0.4, 1.0], seed=1, engine={"workers": 0}),
    ]
    both, alone = comparison.groups(runs)
    assert (both.name, both.runs, both.seeds) == ("fedavg", (runs[0], runs[2]), [0, 1])
    assert alone.runs == (runs[1],)
    assert both.accuracies == pytest.approx({0: 0.3, 1: 0.8})
    assert both.worst10 == pytest.approx(0.3)


def test_a_seed_that_is_there_is_no_further_seed(tmp_path: Path):
    runs = [folder(tmp_path / name, [0.5], seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    first, second = comparison.groups(runs)
    assert first.runs == (runs[0], runs[2]) and second.runs == (runs[1],)
    assert [first.name, second.name] == ["fedavg (a)", "fedavg (b)"]


def test_groups_of_one_algorithm_are_named_by_what_differs(tmp_path: Path):
    runs = [
        folder(tmp_path / "a", [0.5]),
        folder(tmp_path / "b", [0.5], algorithm={"lr": 0.2}),
        folder(tmp_path / "c", [0.5], seed=3, algorithm={"lr": 0.2, "name": "my/own.py:Mine"}),
    ]
    names = [group.name for group in comparison.groups(runs)]
    assert names == ["fedavg (lr = 0.1)", "fedavg (lr = 0.2)", "own.py:Mine"]


def test_words_name_a_group_without_their_key(tmp_path: Path):
    kinds = ({"optimizer": "sgd", "clip": 0.0}, {"optimizer": "adamw", "clip": 1.0})
    runs = [folder(tmp_path / str(at), [0.5], algorithm=kind) for at, kind in enumerate(kinds)]
    names = [group.name for group in comparison.groups(runs)]
    assert names == ["fedavg (sgd, clip = 0.0)", "fedavg (adamw, clip = 1.0)"]


def test_other_images_are_another_setting(tmp_path: Path):
    runs = [folder(tmp_path / name, [0.5, 0.7], seed) for name, seed in (("a", 0), ("b", 1))]
    images(runs[0], 0)
    images(runs[1], 5)
    first, second = comparison.groups(runs)
    assert not comparison.same_data(runs)
    assert comparison.paired(first, second) is None
    assert comparison.count_test_images(runs[0]) == {0: 2, 1: 3}


JOINED = ((0, 8, 8, 10), (10, 18, 18, 21))
MIXED = (*range(3, 8), 0, 1, 2, *range(8, 21))  # of the first client all but the tests


@pytest.mark.parametrize(
    ("bounds", "order", "same"),
    [
        (JOINED, MIXED, True),
        (BOUNDS, range(21), True),
        (((0, 5, 7, 10), (10, 16, 18, 21)), range(21), False),  # one more test
        (((0, 6, 8, 11), (11, 16, 18, 21)), range(21), False),  # an image of the other client
        (BOUNDS, (*range(7), 8, 7, *range(9, 21)), False),  # a test for a validation image
        (BOUNDS, (10, *range(1, 10), 0, *range(11, 21)), False),  # clients swap an image
    ],
)
def test_whether_validation_images_are_trained_on_is_the_methods_affair(
    bounds: Any, order: Any, same: bool, tmp_path: Path
):
    """But tests and all other images are the same clients' as before."""
    one = folder(tmp_path / "a", [0.5, 0.7])
    base = folder(tmp_path / "b", [0.4, 0.5], name="local")
    images(one, 3)
    images(base, 3, bounds, order)
    assert comparison.same_data([one, base]) == comparison.same_data([base, one]) == same
    assert (comparison.paired(*comparison.groups([one, base])) is not None) == same


def test_paired_difference_by_hand(tmp_path: Path):
    """Differences 0.1, 0.2, 0.3: deviation 0.1, and Student's t of two degrees is 4.3027."""
    one = folder(tmp_path / "a", [0.6, 0.8, 0.9])
    base = folder(tmp_path / "b", [0.5, 0.6, 0.6], name="local")
    found = comparison.paired(*comparison.groups([one, base]))
    assert found
    reach = 4.302652729911275 * 0.1 / np.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.2 - reach, 0.2 + reach))
    assert (found.clients, found.seeds, found.beyond_chance) == (3, 1, False)


@pytest.mark.parametrize(
    ("values", "beyond"),
    [([0.6, 0.7], False), ([0.6, 0.6], True), ([0.5, 0.5], False), ([0.4, 0.4], True)],
)
def test_beyond_chance(tmp_path: Path, values: list[float], beyond: bool):
    one, base = folder(tmp_path / "a", values), folder(tmp_path / "b", [0.5, 0.5], name="local")
    found = comparison.paired(*comparison.groups([one, base]))
    assert found and found.beyond_chance == beyond


def test_of_one_client_nothing_is_sure(tmp_path: Path):
    one, base = folder(tmp_path / "a", [0.9]), folder(tmp_path / "b", [0.1], name="local")
    found = comparison.paired(*comparison.groups([one, base]))
    assert found and (found.low, found.high, found.beyond_chance) == (None, None, False)


def test_nothing_tested(tmp_path: Path):
    one, base = folder(tmp_path / "a", []), folder(tmp_path / "b", [0.1], name="local")
    group, other = comparison.groups([one, base])
    assert (group.accuracy, group.worst10) == (None, None)
    assert comparison.paired(group, other) is None


def test_differing(tmp_path: Path):
    runs = [
        folder(tmp_path / "a", [0.5], algorithm={"epochs": 2}),
        folder(tmp_path / "b", [0.5], seed=1, cohort=4),
    ]
    assert comparison.differing(runs) == {
        "seed": [0, 1],
        "algorithm.epochs": [2, None],
        "cohort": [None, 4],
    }
    assert comparison.differing(runs[:1]) == {}
