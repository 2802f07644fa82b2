"""Clients whose images differ: who has which, and that nothing else changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.data.batches import batch
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.data.shift import shifted

PLAIN: dict[str, Any] = {"clients": 5, "new_clients": 2, "alpha": 1.0}


def load(**options: Any) -> Federation:
    return load_federation(DataOptions(**(PLAIN | options)))


@pytest.mark.parametrize("overlap", [False, True])
def test_every_image_of_a_client_is_shifted_and_no_other(overlap: bool) -> None:
    dealt: dict[str, Any] = {"partition": "dirichlet_equal", "overlap": overlap, "per_client": 200}
    plain = load(**dealt)
    data = load(**dealt, shift=("blur", "none", "noise"), shift_groups=3)
    assert [one.kind for one in data.shifts] == ["blur", "none", "noise"] * 2 + ["blur"]
    assert [one.group for one in data.shifts] == [0, 1, 2, 0, 1, 2, 0]
    assert torch.equal(plain.bounds, data.bounds)
    for client, shift in enumerate(data.shifts):
        for split in ("train", "val", "test"):
            was, now = (each.examples(client, split) for each in (plain, data))
            rows = was.index.numpy()
            wanted = plain.images.numpy()[rows]
            if shift.kind != "none":
                wanted = shifted(plain.images.numpy(), rows, shift, 0)
            pixels, labels = batch(now, torch.arange(len(now)), None, "cpu")
            bare = (torch.from_numpy(wanted).float() / 255 - now.mean[0]) / now.std[0]
            assert torch.allclose(pixels, bare, atol=1e-5)
            assert torch.equal(labels, plain.labels[was.index])
    assert (data.label_counts() == plain.label_counts()).all()


def test_originals_are_what_was_dealt() -> None:
    plain, data = load(), load(shift=("contrast", "none"))
    for one, other in zip(plain.originals(), data.originals(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(data.images[: len(plain.images)], plain.images)
    assert plain.shifts == () and plain.origins is None


def test_clients_of_a_group_share_copies() -> None:
    dealt: dict[str, Any] = {"partition": "dirichlet_equal", "overlap": True, "per_client": 900}
    alone, together = (
        load(**dealt, new_clients=0, shift=("noise",), shift_groups=n) for n in (5, 1)
    )
    assert len(together.images) <= 2 * 1797 < len(alone.images) <= 1797 + 5 * 900


def test_every_client_is_its_own_group_by_default() -> None:
    data = load(shift=("rotation",))
    assert len({one.amount for one in data.shifts}) == 7
    again, other = load(shift=("rotation",)), load(shift=("rotation",), seed=1)
    assert data.shifts == again.shifts and torch.equal(data.images, again.images)
    assert not {one.amount for one in data.shifts} & {one.amount for one in other.shifts}


def test_float_images_and_official_tests(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from fedtailor.data.source import Source\n"
        "def load():\n"
        "    x = np.random.default_rng(0).random((180, 3, 6, 6), dtype=np.float32)\n"
        "    y = np.arange(180) % 3\n"
        "    about = tuple('xyz'), (0.5,) * 3, (0.2,) * 3\n"
        "    return Source(x[:120], y[:120], *about, x[120:], y[120:])\n"
    )
    path = f"{tmp_path / 'mine.py'}:load"
    options: dict[str, Any] = {"path": path, "split": "official", "new_clients": 0}
    plain, data = load(**options), load(**options, shift=("grey",))
    for client in range(5):
        was, now = (each.examples(client, "test") for each in (plain, data))
        weights = np.array([0.299, 0.587, 0.114], dtype=np.float32)
        light = np.einsum("nchw,c->nhw", plain.images[was.index].numpy(), weights)
        for channel in range(3):
            assert data.images[now.index][:, channel].numpy() == pytest.approx(light, abs=1e-6)


def test_grey_needs_colours() -> None:
    with pytest.raises(UserError, match=r"^data\.shift: grey needs 3 channels.*have 1"):
        load(shift=("blur", "grey"))
