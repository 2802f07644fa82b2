"""Images of the server: nobody else has them, and who has what else does not depend on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.types import Augment, Examples
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.data.shift import shifted

PLAIN: dict[str, Any] = {"clients": 5, "new_clients": 2, "alpha": 1.0}
EVERY: list[dict[str, Any]] = [
    {"partition": "iid"},
    {"partition": "dirichlet"},
    {"partition": "dirichlet_equal", "per_client": 100},
    {"partition": "dirichlet_equal", "per_client": 400, "overlap": True},
    {"partition": "shards", "per_client": 60},
]


def load(**options: Any) -> Federation:
    return load_federation(DataOptions(**(PLAIN | options)))


def public(data: Federation) -> Examples:
    found = data.public_examples()
    assert found is not None
    return found


def write(path: Path, **more: Any) -> str:
    """Write 300 images that tell their row, and 60 official test images after them."""
    given = ", ".join(f"{key}={value}" for key, value in more.items())
    path.write_text(
        "import numpy as np\n"
        "from fedtailor.data.source import Source\n"
        "def load():\n"
        "    x = np.arange(360, dtype=np.float32).repeat(16).reshape(-1, 1, 4, 4)\n"
        "    y = np.arange(360) % 3\n"
        "    about = tuple('xyz'), (0.5,), (0.2,)\n"
        f"    return Source(x[:300], y[:300], *about, x[300:], y[300:], {given})\n"
    )
    return f"{path}:load"


@pytest.mark.parametrize("how", EVERY, ids=str)
def test_the_server_has_as_many_as_asked_for_and_they_are_nobody_elses(how: dict[str, Any]):
    data = load(public=300, **how)
    assert data.public is not None and len(data.public.unique()) == 300
    assert not np.isin(data.public.numpy(), data.rows.numpy()).any()


@pytest.mark.parametrize("how", EVERY, ids=str)
def test_none_by_default_and_then_nothing_is_dealt_otherwise(how: dict[str, Any]):
    plain, none = load(**how), load(public=0, **how)
    assert plain.public is None and plain.public_examples() is None
    assert torch.equal(plain.rows, none.rows) and torch.equal(plain.bounds, none.bounds)


@pytest.mark.parametrize("how", EVERY, ids=str)
def test_the_rest_is_dealt_as_if_they_did_not_exist(how: dict[str, Any], tmp_path: Path):
    """The same as of a file that lacks them."""
    data = load(public=200, **how)
    assert data.public is not None
    rest = np.delete(np.arange(len(data.images)), data.public.numpy())
    np.savez(tmp_path / "rest.npz", x=data.images[rest].numpy(), y=data.labels[rest].numpy())
    other = load(path=str(tmp_path / "rest.npz"), **how)
    assert torch.equal(data.bounds, other.bounds)
    assert torch.equal(data.images[data.rows], other.images[other.rows])
    assert (data.label_counts() == other.label_counts()).all()


def test_they_are_drawn_by_a_key_of_their_own():
    found = [load(public=100, **how).public for how in (*EVERY, {"clients": 9, "alpha": 5.0})]
    drawn = [one for one in found if one is not None]
    assert len(drawn) == len(found) and all(torch.equal(one, drawn[0]) for one in drawn)
    other = load(public=100, seed=1).public
    assert other is not None and not torch.equal(other, drawn[0])
    counts = np.bincount(public(load(public=600)).labels.numpy(), minlength=10)
    assert counts.min() > 30, "of all classes: drawn at random, 60 are expected"


def test_official_tests_stay_tests(tmp_path: Path):
    path = write(tmp_path / "mine.py")
    how: dict[str, Any] = {"path": path, "clients": 4, "new_clients": 0, "split": "official"}
    data = load(public=120, **how)
    assert (public(data).images < 300).all()
    tests = torch.cat([data.examples(k, "test").index for k in range(4)])
    assert sorted(tests.tolist()) == list(range(300, 360))
    for client in range(4):
        for split in ("train", "val", "test"):
            mine = data.examples(client, split)
            assert torch.equal(mine.labels[mine.index], mine.index % 3)
    assert len(data.rows) == 300 - 120 + 60


def test_of_named_clients_only_those_left_out_give_theirs(tmp_path: Path):
    names = "tuple('abcdef')"
    path = write(tmp_path / "mine.py", client="np.arange(300) % 6", client_names=names)
    how: dict[str, Any] = {"path": path, "partition": "by_client", "clients": 3, "new_clients": 1}
    plain, data = load(**how), load(**how, public=100)
    assert torch.equal(plain.rows, data.rows) and torch.equal(plain.bounds, data.bounds)
    assert data.public is not None and set((data.public % 6).tolist()) == {4, 5}
    with pytest.raises(UserError, match=r"^data\.public: 101 images .*100 images of clients left"):
        load(**how, public=101)


def test_the_servers_examples_are_its_own_copy():
    data = load(public=50, augment=("flip",))
    mine = public(data)
    assert data.public is not None and len(mine) == 50
    assert torch.equal(mine.images[mine.index], data.images[data.public])
    assert torch.equal(mine.labels[mine.index], data.labels[data.public])
    assert mine.images.shape[0] == 50, "a view would keep all images in memory"
    assert mine.images.untyped_storage().data_ptr() != data.images.untyped_storage().data_ptr()
    assert (mine.mean, mine.std, mine.augment) == (data.mean, data.std, Augment())


def test_a_clients_shift_is_not_the_servers():
    plain, data = load(public=50), load(public=50, shift=("contrast",))
    assert torch.equal(public(plain).images, public(data).images)
    index = data.examples(0, "train").index
    assert data.origins is not None and plain.public is not None
    origin = data.origins[index - len(plain.images)]
    assert not np.isin(origin.numpy(), plain.public.numpy()).any()
    wanted = shifted(plain.images.numpy(), origin.numpy(), data.shifts[0], 0)
    assert np.array_equal(data.images[index].numpy(), wanted)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"public": 1797}, r"^data\.public: 1797 images for the server are too many.*are 1797 im"),
        ({"public": 5000}, r"^data\.public: 5000 images for the server are too many"),
        (
            {"public": 1750, "partition": "dirichlet"},
            r"^data\.public: with 1750 of 1797 images kept .*server, data\.min_size: .*has 47",
        ),
        (
            {"public": 1000, "partition": "iid", "per_client": 200},
            r"^data\.public: with 1000 of 1797 images .* data\.per_client: .*has 797, so ask for",
        ),
    ],
)
def test_too_many_is_one_sentence(options: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        load(**options)


def test_faults_of_clients_alone_are_not_the_servers():
    with pytest.raises(UserError, match=r"^data\.min_size: "):
        load(min_size=1000)
