"""From options to clients' examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from fedtailor.core.errors import UserError
from fedtailor.core.types import Augment
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions


def own(folder: Path, *, official: bool = False, clients: bool = False) -> str:
    """Write a source of 120 gray 8x8 images whose pixels tell their row, and return its path."""
    test = ", np.zeros((60, 1, 8, 8), np.uint8), np.arange(60) % 3" if official else ""
    column = ", client=np.arange(120) % 5, client_names=tuple('abcde')" if clients else ""
    (folder / "mine.py").write_text(
        "import numpy as np\n"
        "from fedtailor.data.source import Source\n"
        "def load():\n"
        "    x = np.arange(120, dtype=np.uint8).repeat(64).reshape(-1, 1, 8, 8)\n"
        f"    return Source(x, np.arange(120) % 3, tuple('xyz'), (0.1,), (0.2,){test}{column})\n"
    )
    return f"{folder / 'mine.py'}:load"


def test_default_is_the_digits_dealt_to_ten_clients() -> None:
    data = load_federation(DataOptions())
    assert data.task.shape == (1, 8, 8) and data.task.classes == 10
    assert data.images.shape == (1797, 1, 8, 8) and data.images.dtype == torch.uint8
    assert data.images.max() == 255 and data.images.is_contiguous()
    assert data.bounds.shape == (10, 4) and (data.clients, data.new_clients) == (10, 0)
    assert sorted(data.rows.tolist()) == list(range(1797))
    counts = data.label_counts()
    assert counts.shape == (10, 10)
    assert counts.sum(axis=0).tolist() == torch.bincount(data.labels).tolist()


def test_examples_are_views_of_their_own_rows() -> None:
    data = load_federation(DataOptions(augment=("flip", "crop"), crop_padding=2))
    counts = data.label_counts()
    for client in range(10):
        parts = [data.examples(client, split) for split in ("train", "val", "test")]
        joined = torch.cat([part.index for part in parts])
        assert len(joined.unique()) == len(joined)
        assert np.bincount(data.labels[joined].numpy(), minlength=10).tolist() == list(
            counts[client]
        )
        assert [part.augment for part in parts] == [Augment(2, True, 0), Augment(), Augment()]
        for part in parts:
            assert part.images.data_ptr() == data.images.data_ptr()
            assert part.index.untyped_storage().data_ptr() == data.rows.data_ptr()
    with pytest.raises(ValueError, match="not in tuple"):
        data.examples(0, "valid")


def test_the_seed_is_all_that_counts() -> None:
    one, again, other = (load_federation(DataOptions(seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(one.rows, again.rows) and torch.equal(one.bounds, again.bounds)
    assert not torch.equal(one.bounds, other.bounds)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "dirichlet_equal", "shards"])
def test_new_clients_are_the_last(scheme: Any) -> None:
    options = {"partition": scheme, "alpha": 1.0}
    data = load_federation(DataOptions(clients=6, new_clients=2, **options))
    whole = load_federation(DataOptions(clients=8, **options))
    assert (data.clients, data.new_clients, len(data.bounds)) == (6, 2, 8)
    assert torch.equal(data.rows, whole.rows) and torch.equal(data.bounds, whole.bounds)
    assert len(data.examples(7, "test")) > 0


def test_by_client_uses_the_clients_there_are(tmp_path: Path) -> None:
    path = own(tmp_path, clients=True)

    def load(**options: Any) -> Federation:
        return load_federation(DataOptions(path=path, partition="by_client", **options))

    data = load()
    assert (data.clients, data.client_names) == (5, tuple("abcde"))
    for client in range(5):
        assert (data.images[data.examples(client, "train").index] % 5 == client).all()
    some = load(clients=2, new_clients=1)
    assert (some.clients, some.new_clients, some.client_names) == (2, 1, tuple("abc"))
    rest = load(new_clients=2)
    assert (rest.clients, rest.new_clients) == (3, 2)
    for wrong in ({"clients": 6}, {"clients": 4, "new_clients": 2}, {"new_clients": 5}):
        with pytest.raises(UserError, match=r"^data\.clients: .*has 5"):
            load(**wrong)
    assert load_federation(DataOptions(path=path, clients=3)).client_names == ()


def test_by_client_needs_a_column() -> None:
    with pytest.raises(UserError, match=r"^data\.partition: "):
        load_federation(DataOptions(partition="by_client"))


def test_official_rows_follow_the_pool(tmp_path: Path) -> None:
    path = own(tmp_path, official=True)
    pool = load_federation(DataOptions(path=path, clients=4))
    assert len(pool.images) == 120  # the test set is not even there
    data = load_federation(DataOptions(path=path, clients=4, split="official", alpha=5.0))
    assert len(data.images) == len(data.labels) == 180
    tests = torch.cat([data.examples(k, "test").index for k in range(4)])
    assert sorted(tests.tolist()) == list(range(120, 180))
    train = torch.cat([data.examples(k, "train").index for k in range(4)])
    assert train.max() < 120


def test_digits_have_no_official_test_set() -> None:
    with pytest.raises(UserError, match=r"^data\.split: "):
        load_federation(DataOptions(split="official"))


def test_mean_and_std_can_be_given(tmp_path: Path) -> None:
    path = own(tmp_path)
    assert load_federation(DataOptions(path=path, clients=3)).mean == (0.1,)
    data = load_federation(DataOptions(path=path, clients=3, mean=(0.3,), std=(0.7,)))
    assert (data.mean, data.std) == ((0.3,), (0.7,))
    assert data.examples(0, "val").std == (0.7,)
    for wrong in ({"mean": (0.1, 0.2)}, {"std": (0.0,)}, {"mean": (float("inf"),)}):
        with pytest.raises(UserError, match=r"^data\.(mean|std): "):
            load_federation(DataOptions(path=path, **wrong))  # pyright: ignore[reportArgumentType]


def test_augmentation_must_leave_something() -> None:
    with pytest.raises(UserError, match=r"^data\.cutout_size: 16 pixels .* 8x8"):
        load_federation(DataOptions(augment=("cutout",)))
    with pytest.raises(UserError, match=r"^data\.crop_padding: 8"):
        load_federation(DataOptions(augment=("crop",), crop_padding=8))


def test_options_are_validated_by_pydantic() -> None:
    adapter = TypeAdapter(DataOptions)
    table = {"partition": "shards", "augment": ["flip"], "fractions": [0.5, 0.25, 0.25]}
    assert adapter.validate_python(table) == DataOptions(
        partition="shards", augment=("flip",), fractions=(0.5, 0.25, 0.25)
    )
    for wrong in (
        {"clients": 0},
        {"alpha": 0.0},
        {"alpha": float("nan")},
        {"partition": "dirichlett"},
        {"std": [0.0]},
        {"augment": ["rotate"]},
        {"fractions": [0.5, 0.5]},
        {"new_clients": -1},
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
