"""Data sets known by name."""

import gzip
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.data.federation import load_federation
from fedtailor.data.load import load_source
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Source, check
from fedtailor.data.sources import fashion_mnist
from fedtailor.data.sources._idx import read_idx

NAMES = ["cifar10", "cifar100", "cinic10", "digits", "fashion-mnist"]


def test_names_are_the_files() -> None:
    assert registry.names("data") == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_source_says_what_it_is(name: str) -> None:
    module = registry.module_of("data", name)
    assert callable(module.load)
    assert isinstance(module.ABOUT, str) and "\n" not in module.ABOUT and "classes" in module.ABOUT


@pytest.mark.parametrize(("name", "near"), [("cifar-10", "cifar10"), ("../digits", "digits")])
def test_unknown_name_is_told_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UserError, match=rf"^data\.name: .*perhaps you meant '{near}'"):
        load_source(DataOptions(name=name))


def test_named_data_is_not_converted() -> None:
    with pytest.raises(UserError, match=r"^data\.size: "):
        load_source(DataOptions(size=16))
    with pytest.raises(UserError, match=r"^data\.color: "):
        load_source(DataOptions(color="rgb"))


def test_digits_are_scaled_to_bytes() -> None:
    source = load_source(DataOptions())
    assert source.images.shape == (1797, 1, 8, 8) and source.images.dtype == np.uint8
    assert source.images[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0
    assert source.labels[:5].tolist() == [0, 1, 2, 3, 4] and len(source.classes) == 10


SOURCE = Source(
    np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1]), ("a", "b"), (0.5,), (0.5,)
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": np.zeros((4, 2, 2), np.uint8)}, "the images have shape"),
        ({"images": np.zeros((0, 1, 2, 2), np.uint8)}, "none of them zero"),
        ({"images": np.zeros((4, 1, 2, 2))}, "the images are float64"),
        ({"images": np.full((4, 1, 2, 2), np.inf, np.float32)}, "not finite"),
        ({"labels": np.array([0, 1, 2, 1])}, "run from 0 to 2, but must lie in 0 to 1"),
        ({"labels": np.array([0, 1, 0])}, r"labels must be int64 of shape \(4,\)"),
        ({"labels": np.zeros(4, np.int32)}, "but are int32"),
        ({"test_images": SOURCE.images}, "go together"),
        (
            {"test_images": np.zeros((4, 1, 2, 3), np.uint8), "test_labels": SOURCE.labels},
            "type and shape of the others",
        ),
        ({"client": np.array([0, 1, 2, 3]), "client_names": ("x", "y", "z")}, "client column run"),
    ],
)
def test_check_names_what_is_wrong(change: dict[str, object], words: str) -> None:
    check(SOURCE)
    with pytest.raises(UserError, match=rf"^data\.path: .*{words}"):
        check(replace(SOURCE, **change))  # pyright: ignore[reportArgumentType]


def idx(array: np.ndarray) -> bytes:
    """Return the bytes of an idx file."""
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def test_idx_packed_or_not(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "x").write_bytes(idx(array))
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(array)))
    assert np.array_equal(read_idx(tmp_path / "x", 3), array)
    assert np.array_equal(read_idx(tmp_path / "x.gz", 3), array)


WHOLE = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
PACKED = gzip.compress(WHOLE, mtime=0)  # names of tests are made of it: the same in every process


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x", b"", "is no idx file"),
        ("x", WHOLE[:9], "is no idx file"),
        ("x", b"\0\0\x0d" + WHOLE[3:], "is no idx file"),
        ("x", WHOLE[:-1], "should hold 24 values, but holds 23"),
        ("x", WHOLE + b"\0", "should hold 24 values, but holds 25"),
        ("x.gz", WHOLE, "cannot be read"),
        ("x.gz", PACKED[:-9], "cannot be read"),
        ("x.gz", PACKED[:12] + b"\xff" * 20, "cannot be read"),
    ],
)
def test_idx_that_is_damaged(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"^data\.root: .*{words}"):
        read_idx(tmp_path / name, 3)


@pytest.mark.parametrize("below", [".", "fashion-mnist"])
def test_fashion_mnist_from_any_folder(tmp_path: Path, below: str) -> None:
    folder = tmp_path / below
    folder.mkdir(exist_ok=True)
    for part, count in (("train", 20), ("t10k", 10)):
        images = np.full((count, 28, 28), count, dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    source = load_source(DataOptions(name="fashion-mnist", root=str(tmp_path), split="official"))
    assert source.images.shape == (20, 1, 28, 28) and source.images.max() == 20
    assert source.test_images is not None and source.test_images.shape == (10, 1, 28, 28)
    options = DataOptions(
        name="fashion-mnist", root=str(tmp_path), split="official", clients=2, partition="iid"
    )
    data = load_federation(options)  # from read-only bytes to tensors without a warning
    assert data.images.shape == (30, 1, 28, 28)


def test_fashion_mnist_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "_DEBIAN", tmp_path)
    with pytest.raises(UserError, match=r"^data\.root: .*train-images.*dataset-fashion-mnist"):
        load_source(DataOptions(name="fashion-mnist", root=str(tmp_path)))


@pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").is_dir(),
    reason="Debian's package dataset-fashion-mnist is not installed.",
)
def test_fashion_mnist_of_debian(tmp_path: Path) -> None:
    source = load_source(DataOptions(name="fashion-mnist", root=str(tmp_path), split="official"))
    assert source.images.shape == (60_000, 1, 28, 28)
    assert source.test_images is not None and len(source.test_images) == 10_000
    assert np.bincount(source.labels).tolist() == [6000] * 10
    assert source.labels[:4].tolist() == [9, 0, 0, 3]
    assert source.images.mean() / 255 == pytest.approx(source.mean[0], abs=1e-3)
    assert source.images.std() / 255 == pytest.approx(source.std[0], abs=1e-3)


CINIC = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.mark.parametrize("below", ["cinic-10", "CINIC-10", "."])
def test_cinic10(tmp_path: Path, below: str) -> None:
    for at, part in enumerate(("train", "valid", "test")):
        for label, name in enumerate(CINIC):
            folder = tmp_path / below / part / name
            folder.mkdir(parents=True)
            for row in range(2):
                mode = "L" if row else "RGB"  # as in the data set itself
                Image.new(mode, (32, 32), 10 * at if row else (label, 0, 0)).save(
                    folder / f"{row}.png"
                )
    options = DataOptions(name="cinic10", root=str(tmp_path), split="official")
    source = load_source(options)
    assert source.images.shape == (40, 3, 32, 32) and source.classes == tuple(CINIC)
    assert source.labels.tolist() == [label for _ in range(2) for label in range(10) for _ in "ab"]
    assert source.images[:20:2, 0, 0, 0].tolist() == list(range(10))
    assert source.images[21, :, 0, 0].tolist() == [10] * 3
    assert source.test_images is not None and source.test_images[1, 2, 5, 5] == 20
    assert load_source(replace(options, split="pool")).test_images is None


def test_cinic10_absent(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data\.root: .*train/airplane .*CINIC-10\.tar\.gz"):
        load_source(DataOptions(name="cinic10", root=str(tmp_path)))


ROOT = os.environ.get("FEDTAILOR_DATA", "")
needs_cifar = pytest.mark.skipif(
    not Path(ROOT, "cifar-10-batches-py").is_dir() or not Path(ROOT, "cifar-100-python").is_dir(),
    reason="Set FEDTAILOR_DATA to a folder with CIFAR-10 and CIFAR-100 to test on them.",
)


@needs_cifar
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_real_cifar(name: str, classes: int) -> None:
    source = load_source(DataOptions(name=name, split="official"))
    assert source.images.shape == (50_000, 3, 32, 32)
    assert source.test_images is not None and source.test_images.shape == (10_000, 3, 32, 32)
    assert np.bincount(source.labels).tolist() == [50_000 // classes] * classes
    assert len(set(source.classes)) == classes
    assert source.images.mean(axis=(0, 2, 3)) / 255 == pytest.approx(source.mean, abs=2e-3)
    assert source.images.std(axis=(0, 2, 3)) / 255 == pytest.approx(source.std, abs=2e-3)
    first = {"cifar10": "frog", "cifar100": "cattle"}[name]
    assert source.classes[source.labels[0]] == first


@needs_cifar
def test_real_cifar_federation() -> None:
    options = DataOptions(name="cifar10", clients=20, split="official", alpha=0.3)
    data = load_federation(options)
    tests = np.concatenate([data.examples(k, "test").index.numpy() for k in range(20)])
    assert sorted(tests) == list(range(50_000, 60_000))
    for client in range(20):
        parts = []
        for split in ("train", "test"):
            labels = data.labels[data.examples(client, split).index].numpy()
            parts.append(np.bincount(labels, minlength=10) / len(labels))
        assert np.abs(parts[0] - parts[1]).max() < 0.06
