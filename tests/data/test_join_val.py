"""Validation images that join training from the start: these, no others, and never a test image."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.types import Augment, Client, Setting
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.spaces.cnn import CNN
from fedtailor.training import learn
from tests.helpers import sde_setting

SHARED: dict[str, Any] = {"partition": "dirichlet_equal", "per_client": 200}
EVERY: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "dirichlet": {"partition": "dirichlet", "alpha": 0.5},
    "balance": {"partition": "dirichlet", "alpha": 0.5, "balance": True},
    "dirichlet_equal": {"partition": "dirichlet_equal"},
    "shards": {"partition": "shards", "classes_per_client": 4},
    "overlap": SHARED | {"overlap": True},
    "leaky": SHARED | {"overlap": "leaky"},
    "shift": {"partition": "iid", "shift": ("noise", "none"), "shift_groups": 4},
    "by_client": {"partition": "by_client"},
    "official": {"partition": "iid", "split": "official"},
    "official, shared": {"partition": "iid", "split": "official", "test_per_client": 9},
}


def both(how: str, folder: Path) -> tuple[Federation, Federation]:
    """Deal the same data twice: as usual, and with validation images joined."""
    options: dict[str, Any] = {"clients": 5, "new_clients": 2, **EVERY[how]}
    options |= {"augment": ("flip", "crop"), "crop_padding": 1}
    if how.startswith(("by_client", "official")):
        options["path"] = own(folder)
    plain = load_federation(DataOptions(**options))
    return plain, load_federation(DataOptions(**options, join_val=True))


def own(folder: Path) -> str:
    """Write a source with clients and an official test set; pixels tell images apart."""
    (folder / "mine.py").write_text(
        "import numpy as np\n"
        "from fedtailor.data.source import Source\n"
        "def load():\n"
        "    x = np.arange(210, dtype=np.uint8).repeat(64).reshape(-1, 1, 8, 8)\n"
        "    tests = np.full((90, 1, 8, 8), 255, np.uint8), np.arange(90) % 3\n"
        "    return Source(x, np.arange(210) % 3, tuple('xyz'), (0.1,), (0.2,), *tests,\n"
        "        client=np.arange(210) % 7, client_names=tuple('abcdefg'))\n"
    )
    return f"{folder / 'mine.py'}:load"


def rows(data: Federation, client: int, split: str) -> list[int]:
    return data.examples(client, split).index.tolist()


@pytest.mark.parametrize("how", EVERY)
def test_these_images_join_and_no_others(how: str, tmp_path: Path):
    plain, found = both(how, tmp_path)
    assert torch.equal(plain.images, found.images) and torch.equal(plain.labels, found.labels)
    for client in range(7):
        train, val, test = (rows(plain, client, split) for split in ("train", "val", "test"))
        assert val and rows(found, client, "train") == sorted(train + val)
        assert rows(found, client, "val") == []
        assert rows(found, client, "test") == test
        assert not set(rows(found, client, "train")) & set(test)
    assert (found.label_counts() == plain.label_counts()).all()


@pytest.mark.parametrize("how", [how for how in EVERY if how != "leaky"])
def test_nobody_trains_on_what_anybody_is_tested_on(how: str, tmp_path: Path):
    _, found = both(how, tmp_path)
    _, _, dealt = found.originals()  # shifted copies are the images that they were
    found = replace(found, rows=dealt)
    trained = {row for client in range(7) for row in rows(found, client, "train")}
    tested = {row for client in range(7) for row in rows(found, client, "test")}
    assert trained and tested and not trained & tested


def client_of(data: Federation, number: int) -> Client:
    setting = Setting(data.task, CNN(width=4, hidden=16), rounds=10, seed=3)
    return sde_setting.client_of(data, setting, number, 1)


@pytest.mark.parametrize("how", EVERY)
def test_a_client_that_joins_later_has_the_same_batches(how: str, tmp_path: Path):
    plain, found = both(how, tmp_path)
    for number in (0, 4, 6):
        early, late = client_of(found, number), learn.joined(client_of(plain, number))
        assert len(early.train) == len(late.train) > 10 and len(late.val) == len(early.val) == 0
        assert early.train.augment == late.train.augment == Augment(1, True, 0)
        pairs = zip(*(learn.batches(c, 16, purpose="x") for c in (early, late)), strict=True)
        for one, other in pairs:
            assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_joining_keeps_all_else_and_is_done_once(client: Client):
    found = learn.joined(client)
    assert np.array_equal(
        found.train.index, np.sort(np.concatenate([client.train.index, client.val.index]))
    )
    assert found.meter is client.meter and found.test is client.test
    assert (found.info, found.round, found.setting) == (client.info, client.round, client.setting)
    again = learn.joined(found)
    assert torch.equal(again.train.index, found.train.index)
    assert len(client.val) == 16, "the client itself is as it was"


def test_there_is_nothing_left_to_validate_on(client: Client):
    from fedtailor.networks.initial import initial_weights

    network = learn.network(client, initial_weights(client.setting))
    with pytest.raises(ValueError, match="no images to test on"):
        learn.evaluate(network, learn.joined(client).val)
