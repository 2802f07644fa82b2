"""Test images of classes that a client does not train on: how many, whose, and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Ints
from fedtailor.data.split import Parts
from fedtailor.data.unseen import with_unseen

PLAIN: dict[str, Any] = {"clients": 5, "new_clients": 1, "alpha": 0.3}
ALL = np.arange(16)
EVERY: list[dict[str, Any]] = [
    {"partition": "dirichlet"},
    {"partition": "dirichlet_equal", "per_client": 150},
    {"partition": "dirichlet_equal", "per_client": 100, "overlap": True},
    {"partition": "shards", "per_client": 60},
]


def load(**options: Any) -> Federation:
    return load_federation(DataOptions(**(PLAIN | options)))


def rows(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def parts_of(data: Federation) -> list[list[set[int]]]:
    """Return every client's train, val and test rows as sets."""
    splits = ("train", "val", "test")
    found = [[data.examples(k, s).index.tolist() for s in splits] for k in range(len(data.bounds))]
    assert all(len(set(part)) == len(part) for own in found for part in own), "none twice"
    return [[set(part) for part in own] for own in found]


def classes_of(data: Federation, part: set[int]) -> set[int]:
    return set(data.labels[sorted(part)].tolist())


# Labels 0 0 0 0 0 0 | 1 1 1 1 1 1 | 2 2 2 2: three clients of a class or two.
LABELS = np.repeat([0, 1, 2], [6, 6, 4])
THREE: list[Parts] = [
    (rows(0, 1), rows(2), rows(3, 4, 5)),  # trains on 0, tests 0 0 0
    (rows(6, 7), rows(8), rows(9, 10)),  # trains on 1, tests 1 1
    (rows(11, 12), rows(13), rows(14, 15)),  # trains on 1 and 2, tests 2 2
]


def test_by_hand():
    first, second, third = with_unseen(THREE, LABELS, ALL, DataOptions(test_unseen=0.5))
    for (train, val, _), old in zip((first, second, third), THREE, strict=True):
        assert np.array_equal(train, old[0]) and np.array_equal(val, old[1])
    # Round of 1.5 is 2: two of 9, 10, 14, 15 beside one of its own.
    assert len(first[2]) == 3 and len({3, 4, 5} & set(first[2])) == 1
    assert len({9, 10, 14, 15} & set(first[2])) == 2
    # One of 3, 4, 5, 14, 15 beside 9 or 10.
    assert len(second[2]) == 2 and len({3, 4, 5, 14, 15} & set(second[2])) == 1
    # It lacks 0 alone: one of 3, 4, 5.
    assert len(third[2]) == 2 and len({3, 4, 5} & set(third[2])) == 1


def test_what_is_unseen_by_chance_counts():
    own = (rows(0, 1), rows(2), rows(3, 9, 10, 4))  # two of four are
    (same, _, _) = with_unseen([own, *THREE[1:]], LABELS, ALL, DataOptions(test_unseen=0.5))
    assert np.array_equal(same[2], own[2])
    (more, _, _) = with_unseen([own, *THREE[1:]], LABELS, ALL, DataOptions(test_unseen=0.75))
    assert {9, 10} < set(more[2]) and len({3, 4} & set(more[2])) == 1
    assert len({14, 15} & set(more[2])) == 1, "another, not the same twice"


def test_classes_that_it_chooses_by_are_not_drawn():
    own = (rows(0, 1), rows(2, 6), rows(3, 4, 5))  # validates on class 1, too
    for seed in range(8):
        how = DataOptions(test_unseen=0.5, seed=seed)
        (first, *_) = with_unseen([own, *THREE[1:]], LABELS, ALL, how)
        assert {14, 15} < set(first[2])


@pytest.mark.parametrize("how", EVERY, ids=str)
def test_none_by_default_and_then_nothing_changes(how: dict[str, Any]):
    plain, none = load(**how), load(test_unseen=0.0, **how)
    assert torch.equal(plain.rows, none.rows) and torch.equal(plain.bounds, none.bounds)
    assert not plain.tells_unseen and load(test_unseen=0.2, **how).tells_unseen


@pytest.mark.parametrize(
    ("how", "share"), [*((how, share) for how in EVERY for share in (0.1, 0.3)), (EVERY[-1], 1.0)]
)
def test_shares_are_met_and_nobody_trains_or_chooses_by_what_is_drawn(
    how: dict[str, Any], share: float
):
    plain, data = load(**how), load(test_unseen=share, **how)
    assert torch.equal(plain.bounds, data.bounds)
    before, after = parts_of(plain), parts_of(data)
    used = {row for own in after for part in own[:2] for row in part}
    pool = set(range(1797)) - used
    counts, changed = data.unseen_tests(), 0
    for client, (old, new) in enumerate(zip(before, after, strict=True)):
        assert old[:2] == new[:2]
        known = classes_of(data, new[0])
        unseen = {row for row in new[2] if int(data.labels[row]) not in known}
        chance = {row for row in old[2] if int(data.labels[row]) not in known}
        lacks = set(range(10)) - known - classes_of(data, new[1])
        wanted = round(share * len(old[2])) if lacks else 0
        assert len(unseen) == max(wanted, len(chance)) == counts[client].sum()
        assert chance <= unseen <= pool
        assert new[2] - unseen <= old[2]
        changed += old[2] != new[2]
    assert changed >= 4


def test_a_client_of_all_classes_keeps_its_tests():
    whole = (rows(0, 6, 11, 14), rows(1), rows(3, 9, 15))
    found = with_unseen([*THREE[:2], whole], LABELS, ALL, DataOptions(test_unseen=0.5))
    assert np.array_equal(found[2][2], whole[2])
    assert not np.array_equal(found[0][2], THREE[0][2])


def test_draws_are_of_client_and_seed():
    one, again = (load(test_unseen=0.4) for _ in range(2))
    assert torch.equal(one.rows, again.rows)
    how = [DataOptions(test_unseen=0.5, seed=seed) for seed in range(6)]
    found = {tuple(sorted(with_unseen(THREE, LABELS, ALL, one)[0][2])) for one in how}
    assert len(found) > 2
    alike = [(rows(0, 1), rows(2), rows(3, 4, 5))] * 2
    drawn = [with_unseen([*alike, *THREE[1:]], LABELS, ALL, one) for one in how]
    assert any(set(one[0][2]) != set(one[1][2]) for one in drawn)


def test_official_tests_are_all_there_to_be_drawn_from(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from fedtailor.data.source import Source\n"
        "def load():\n"
        "    x, y = np.zeros((360, 1, 4, 4), np.uint8), np.arange(360) % 6\n"
        "    about = tuple('uvwxyz'), (0.5,), (0.2,)\n"
        "    return Source(x[:300], y[:300], *about, x[300:], y[300:])\n"
    )
    how: dict[str, Any] = {
        "path": f"{tmp_path / 'mine.py'}:load", "split": "official", "partition": "shards",
        "classes_per_client": 2, "per_client": 40, "test_per_client": 5,
    }  # fmt: skip
    data = load(**how, test_unseen=0.6)
    drawn = {row for _, _, test in parts_of(data) for row in test}
    assert drawn <= set(range(300, 360))
    assert data.unseen_tests().sum(axis=1).tolist() == [3] * 6
    few = load(**(how | {"clients": 2, "new_clients": 0}), test_unseen=0.6)
    had = {row for _, _, test in parts_of(load(**(how | {"clients": 2, "new_clients": 0})))
           for row in test}  # fmt: skip
    assert {row for _, _, test in parts_of(few) for row in test} - had, "not others' tests alone"


def test_the_servers_images_are_not_drawn():
    how: dict[str, Any] = {"partition": "shards", "per_client": 60, "test_unseen": 1.0}
    for seed in range(4):
        data = load(**how, public=1200, seed=seed)
        assert data.public is not None and not np.isin(data.rows, data.public).any()


def test_unseen_images_are_shifted_as_the_clients_own():
    plain, data = load(test_unseen=0.5), load(test_unseen=0.5, shift=("contrast",))
    for one, other in zip(plain.originals(), data.originals(), strict=True):
        assert torch.equal(one, other)
    assert (data.examples(0, "test").index >= len(plain.images)).all()
    assert (plain.unseen_tests() == data.unseen_tests()).all()


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "iid", "test_unseen": 0.5},
        {"partition": "shards", "per_client": 20, "test_unseen": 0.01},  # of four images
    ],
)
def test_a_share_that_would_do_nothing_is_one_sentence(options: dict[str, Any]):
    with pytest.raises(UserError, match=r"^data\.test_unseen: at 0\.\d+ no client would be tested"):
        load(**options)


def test_too_few_images_of_other_classes_is_one_sentence():
    parts = [(rows(0, 1), rows(2), rows(3, 4, 5)), (rows(6, 7, 11), rows(8), rows(9))]
    with pytest.raises(UserError, match=r"^data\.test_unseen: client 0 lacks 2 .*there are 1, so"):
        with_unseen(parts, LABELS[:12], ALL[:10], DataOptions(test_unseen=0.5))
