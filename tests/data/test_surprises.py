"""What about own data is probably not meant is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions

LABELS = np.arange(60) % 3


def notes(tmp_path: Path, x: Any = None, y: Any = LABELS, client: Any = None, **more: Any) -> str:
    """Return what is said of data; nothing is surprising about these by themselves."""
    x = np.zeros((60, 4, 4), np.uint8) if x is None else x
    columns = {} if client is None else {"client": client}
    np.savez(tmp_path / "own.npz", x=x, y=y, **columns)
    options = {"path": str(tmp_path / "own.npz"), "partition": "iid", "clients": 3} | more
    return "; ".join(load_federation(DataOptions(**options)).notes)


def test_nothing_is_said_of_usual_data(tmp_path: Path) -> None:
    assert notes(tmp_path) == ""
    floats = np.random.default_rng(0).random((60, 4, 4))
    assert notes(tmp_path, floats) == ""
    assert notes(tmp_path, client=LABELS, partition="by_client", clients=None) == ""


def test_labels_with_gaps(tmp_path: Path) -> None:
    assert "0 to 20, which makes 21 classes, but only 3 of them have images (0, 10, 20)" in notes(
        tmp_path, y=LABELS * 10
    )


def test_one_class(tmp_path: Path) -> None:
    assert notes(tmp_path, y=LABELS * 0).startswith("all images are of one class (0)")


def test_clients_that_are_ignored_or_left_out(tmp_path: Path) -> None:
    said = notes(tmp_path, client=LABELS)
    assert said.startswith("the data says which of 3 clients") and '"iid" deals' in said
    names = np.array(["ann", "bob", "zoe"])[LABELS]
    said = notes(tmp_path, client=names, partition="by_client", clients=2)
    assert said.startswith("1 of 3 clients take no part (zoe (2)), since data.clients = 2")


@pytest.mark.parametrize(("scale", "shift"), [(255.0, 0.0), (2.0, -1.0)])
def test_floats_beyond_0_and_1(tmp_path: Path, scale: float, shift: float) -> None:
    floats = np.linspace(0, 1, 960).reshape(60, 4, 4) * scale + shift
    assert notes(tmp_path, floats).startswith(f"pixels are floats from {shift:.4g} to")
    assert notes(tmp_path, floats, mean=(scale / 2 + shift,), std=(scale / 2,)) == ""


def test_keys_that_change_nothing(tmp_path: Path) -> None:
    assert notes(tmp_path, alpha=0.5) == 'data.alpha has no effect with data.partition = "iid"'
    assert notes(tmp_path, alpha=0.5, partition="dirichlet") == ""
    digits = DataOptions(partition="shards", classes_per_client=3, min_size=20)
    assert load_federation(digits).notes == (
        'data.min_size has no effect with data.partition = "shards"',
    )
