"""Fashion-MNIST, from its four idx files, packed or not."""

from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Images, Ints, Source
from fedtailor.data.sources._download import data_root
from fedtailor.data.sources._idx import read_idx

ABOUT = "60,000 articles and 10,000 to test, 28x28 gray, 10 classes (Xiao et al., 2017)"

_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # the package dataset-fashion-mnist


def load(options: DataOptions) -> Source:
    """Read Fashion-MNIST from the data root, or from where Debian puts it."""
    images, labels = _read(options, "train")
    test = _read(options, "t10k") if options.split == "official" else (None, None)
    return Source(images, labels, _CLASSES, (0.2860,), (0.3530,), *test)


def _read(options: DataOptions, part: str) -> tuple[Images, Ints]:
    """Read the images and labels of train or t10k."""
    images = read_idx(_find(options, f"{part}-images-idx3-ubyte"), 3)
    labels = read_idx(_find(options, f"{part}-labels-idx1-ubyte"), 1)
    return images[:, None], labels.astype("int64")


def _find(options: DataOptions, name: str) -> Path:
    """Return where a file lies."""
    root = data_root(options)
    for folder in (root, root / "fashion-mnist", _DEBIAN):
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return file
    raise UserError(
        f"data.root: there is no {name} (nor .gz) in {root / 'fashion-mnist'}, so put the four "
        "idx files of https://github.com/zalandoresearch/fashion-mnist there, or on Debian "
        "install the package dataset-fashion-mnist."
    )
