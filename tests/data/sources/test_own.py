"""A user's own data: folders of images, .npz files and functions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import UserError
from fedtailor.data.federation import load_federation
from fedtailor.data.load import load_source
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Source


def save(path: Path, mode: str = "L", size: tuple[int, int] = (6, 4), value: int = 90) -> None:
    """Write an image of one value, width x height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = len(Image.new(mode, (1, 1)).getbands())
    Image.new(mode, size, value if channels == 1 else (value,) * channels).save(path)


def load(path: Path | str, **options: Any) -> Source:
    """Read a path."""
    return load_source(DataOptions(path=str(path), **options))


def fails(path: Path | str, words: str, **options: Any) -> None:
    """Assert that reading ends in one sentence with these words."""
    with pytest.raises(UserError, match=words) as caught:
        load(path, **options)
    assert str(caught.value).startswith("data.") and str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_folder_of_classes(tmp_path: Path) -> None:
    for value, name in enumerate(
        ["dog/b.png", "dog/a.png", "cat/x.jpg", "cat/.hidden", "emu/1.bmp"]
    ):
        if ".hidden" in name:
            (tmp_path / name).write_text("no image")
        else:
            save(tmp_path / name, value=50 * value)
    (tmp_path / ".cache").mkdir()
    source = load(tmp_path)
    assert source.classes == ("cat", "dog", "emu") and source.labels.tolist() == [0, 1, 1, 2]
    assert source.images.shape == (4, 1, 4, 6) and source.images.dtype == np.uint8
    assert source.images[:, 0, 0, 0].tolist() == [100, 50, 0, 200]  # a.png before b.png
    assert source.client is None and (source.mean, source.std) == ((0.5,), (0.5,))


def test_folder_of_clients(tmp_path: Path) -> None:
    for client, label in (("zoe", "dog"), ("ann", "dog"), ("ann", "cat"), ("bob", "cat")):
        save(tmp_path / client / label / "1.png", "RGB")
    source = load(tmp_path)
    assert source.images.shape == (4, 3, 4, 6)
    assert source.client_names == ("ann", "bob", "zoe") and source.classes == ("cat", "dog")
    assert source.client is not None and source.client.tolist() == [0, 0, 1, 2]
    assert source.labels.tolist() == [0, 1, 0, 1]


def test_folder_becomes_a_federation(tmp_path: Path) -> None:
    for client in range(3):
        for row in range(5):
            save(tmp_path / f"client{client}" / "ab"[row % 2] / f"{row}.png", value=10 * client)
    data = load_federation(DataOptions(path=str(tmp_path), partition="by_client"))
    assert data.client_names == ("client0", "client1", "client2")
    assert data.label_counts().tolist() == [[3, 2]] * 3
    assert (data.images[data.examples(2, "train").index] == 20).all()


def test_folder_of_the_wrong_depth(tmp_path: Path) -> None:
    fails(tmp_path, r"^data\.path: .* holds no images")
    save(tmp_path / "dog" / "1.png")
    save(tmp_path / "ann" / "dog" / "1.png")
    fails(tmp_path, "mixes the two")
    save(tmp_path / "stray.png")
    fails(tmp_path, r"holds stray\.png")
    save(tmp_path / "x" / "y" / "z" / "w" / "1.png")
    (tmp_path / "stray.png").unlink()
    fails(tmp_path, r"holds x/y/z/w/1\.png")


def test_folder_that_leads_in_circles(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "1.png")
    (tmp_path / "dog" / "again").symlink_to(tmp_path)
    fails(tmp_path, r"^data\.path: .* everywhere")


def test_files_that_are_no_images_are_skipped_with_a_note(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "1.PNG")
    (tmp_path / "cat" / "kittens").mkdir(parents=True)
    (tmp_path / ".cache" / "x").mkdir(parents=True)
    assert [note.partition(":")[0] for note in load(tmp_path).notes] == ["cat/, cat/kittens/"]
    for stray in ("dog/Thumbs.db", "readme.txt", "dog/a.txt", "cat/b.txt"):
        (tmp_path / stray).write_text("hello")
    source = load(tmp_path)
    assert len(source.images) == 1 and source.classes == ("dog",)
    assert source.notes[0].startswith("cat/b.txt, dog/Thumbs.db, dog/a.txt and 1 more: no image")
    (tmp_path / "dog" / "2.png").write_text("hello")
    fails(tmp_path, r"^data\.path: .*2\.png cannot be read as an image")


def test_image_that_is_cut_off(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "1.png", size=(200, 200))
    file = tmp_path / "dog" / "1.png"
    file.write_bytes(file.read_bytes()[:-30])
    fails(tmp_path, r"^data\.path: .*1\.png cannot be read as an image")


def test_animation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dog").mkdir()
    frames = [Image.new("L", (4, 4), value) for value in (0, 200)]
    frames[0].save(tmp_path / "dog" / "1.gif", save_all=True, append_images=frames[1:])
    fails(tmp_path, "more than one frame", color="gray")


def test_sizes_are_converted_only_when_told(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "1.png", size=(6, 4))
    save(tmp_path / "dog" / "2.png", size=(5, 5), value=30)
    fails(tmp_path, r"^data\.size: .*2\.png is 5x5 pixels and .*1\.png is 4x6 pixels")
    source = load(tmp_path, size=8)
    assert source.images.shape == (2, 1, 8, 8)
    assert (source.images[0] == 90).all() and (source.images[1] == 30).all()


def test_modes_are_converted_only_when_told(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "1.png", "RGB")
    save(tmp_path / "dog" / "2.png", "L", value=30)
    fails(tmp_path, r"^data\.color: .*2\.png has 1 channels and .*1\.png has 3")
    assert load(tmp_path, color="rgb").images[:, :, 0, 0].tolist() == [[90] * 3, [30] * 3]
    assert load(tmp_path, color="gray").images[:, :, 0, 0].tolist() == [[90], [30]]


@pytest.mark.parametrize(
    ("mode", "suffix", "value", "gray"),
    [
        ("RGBA", "png", 90, 90),
        ("LA", "png", 90, 90),
        ("1", "png", 1, 255),
        ("P", "gif", 0, 0),
        ("I;16", "png", 65_535, 255),
        ("I", "tiff", 257 * 90, 90),
        ("CMYK", "jpg", 255, 0),
    ],
)
def test_odd_modes(tmp_path: Path, mode: str, suffix: str, value: int, gray: int) -> None:
    save(tmp_path / "dog" / f"1.{suffix}", mode, value=value)
    fails(tmp_path, r"^data\.color: .*mode .* neither 8-bit gray nor rgb")
    for color, channels in (("gray", 1), ("rgb", 3)):
        images = load(tmp_path, color=color).images
        assert images.shape == (1, channels, 4, 6)
        assert np.abs(images.astype(int) - gray).max() <= 1


def test_palette_with_transparency(tmp_path: Path) -> None:
    (tmp_path / "dog").mkdir()
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "dog" / "1.png", transparency=bytes([0, 128]))
    assert load(tmp_path, color="rgb").images[0, :, 0, 0].tolist() == [10, 20, 30]


def test_float_and_32_bit_images_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "dog" / "1.tiff", "F")
    fails(tmp_path, r"floats, which an \.npz file can hold", color="gray")
    save(tmp_path / "dog" / "1.tiff", "I", value=70_000)
    fails(tmp_path, "do not fit into 16 bits", color="gray")


def npz(folder: Path, **arrays: Any) -> Path:
    """Write an .npz file."""
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((4, 5, 6), (4, 1, 5, 6)),
        ((4, 5, 6, 3), (4, 3, 5, 6)),
        ((4, 5, 6, 1), (4, 1, 5, 6)),
        ((4, 3, 5, 6), (4, 3, 5, 6)),
        ((4, 1, 5, 6), (4, 1, 5, 6)),
    ],
)
@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
def test_npz_layouts(
    tmp_path: Path, shape: tuple[int, ...], wanted: tuple[int, ...], kind: type
) -> None:
    x = np.random.default_rng(0).integers(256, size=shape).astype(kind)
    source = load(npz(tmp_path, x=x, y=np.array([0, 2, 1, 0], dtype=np.uint8)))
    assert source.images.shape == wanted
    assert source.images.dtype == (np.uint8 if kind is np.uint8 else np.float32)
    assert np.array_equal(source.images[1].ravel().sum(), x[1].ravel().sum())
    if shape[-1] == 3:
        assert np.array_equal(source.images[2, 1], x[2, :, :, 1])
    assert source.labels.dtype == np.int64 and source.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("column", "names"), [([7, 3, 7, 9], "3 7 9"), (["b", "a", "b", "c"], "a b c")]
)
def test_npz_clients(tmp_path: Path, column: list[Any], names: str) -> None:
    file = npz(tmp_path, x=np.zeros((4, 5, 5), np.uint8), y=np.zeros(4, int), client=column)
    source = load(file)
    assert source.client_names == tuple(names.split())
    assert source.client is not None and source.client.tolist() == [1, 0, 1, 2]


GOOD = np.zeros((4, 5, 5), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": GOOD}, "holds x, but must hold x and y"),
        ({"x": GOOD, "y": np.zeros(4, int), "clients": np.zeros(4)}, "holds clients, x, y"),
        ({"x": np.zeros((4, 3, 5, 3), np.uint8), "y": np.zeros(4, int)}, "both of the second"),
        ({"x": np.zeros((4, 2, 5, 5), np.uint8), "y": np.zeros(4, int)}, "neither of the second"),
        ({"x": np.zeros((4, 5), np.uint8), "y": np.zeros(4, int)}, "neither of the second"),
        ({"x": GOOD.astype(np.int32), "y": np.zeros(4, int)}, "x is int32"),
        ({"x": np.full((4, 5, 5), np.nan), "y": np.zeros(4, int)}, "not finite"),
        ({"x": GOOD, "y": np.zeros(4)}, "y is float64"),
        ({"x": GOOD, "y": np.zeros(3, int)}, "x has 4 images, but y has 3 labels"),
        ({"x": GOOD, "y": np.array([0, -1, 0, 1])}, "y holds -1, but classes are numbered from 0"),
        ({"x": GOOD, "y": np.array(["a", "b", "a", "b"])}, r"y is text of shape \(4,\)"),
        ({"x": GOOD, "y": np.zeros(4, int), "client": np.zeros(4)}, "client is float64"),
        ({"x": GOOD, "y": np.array([0, "a"], dtype=object)}, "plain arrays"),
    ],
)
def test_npz_that_is_wrong(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    fails(npz(tmp_path, **arrays), rf"^data\.path: .*{words}")


def test_file_that_is_no_npz(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 nonsense")
    fails(tmp_path / "mine.npz", r"^data\.path: .*cannot be read as an \.npz")
    (tmp_path / "mine.npz").write_bytes(b"")
    fails(tmp_path / "mine.npz", r"^data\.path: .*cannot be read as an \.npz")


def test_function(tmp_path: Path) -> None:
    file = tmp_path / "my_data.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import numpy as np\n"
        "@dataclass\n"
        "class Shape:\n    side: int\n"
        "def pair():\n"
        "    side = Shape(8).side\n"
        "    return np.zeros((6, side, side)), np.arange(6) % 2\n"
        "def triple():\n    return *pair(), [1, 1, 0, 0, 0, 0]\n"
        "def wrong():\n    return 3\n"
        "def broken():\n    return 1 / 0\n"
    )
    assert load(f"{file}:pair").images.shape == (6, 1, 8, 8)
    assert load(f"{file}:triple").client_names == ("0", "1")
    fails(f"{file}:wrong", r"^data\.path: wrong returned int")
    fails(f"{file}:broken", r"^data\.path: broken in .* raised ZeroDivisionError")
    fails(f"{file}:absent", r"^data\.path: .*has no function absent")
    fails(f"{tmp_path}/none.py:pair", r"^data\.path: there is no file")


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    fails(tmp_path / "absent", r"^data\.path: there is no folder")
    fails(tmp_path / "absent.npz", r"^data\.path: there is no folder")
    fails(npz(tmp_path, x=GOOD, y=np.zeros(4, int)), r"^data\.size: only a folder", size=8)
