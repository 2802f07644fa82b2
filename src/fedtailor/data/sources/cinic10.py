"""CINIC-10, from its official folders train, valid and test."""

from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Images, Ints, Source
from fedtailor.data.sources._download import Archive, data_root, fetch
from fedtailor.data.sources._pictures import read_pictures

ABOUT = "180,000 photos and 90,000 to test, 32x32 colour, 10 classes (Darlow et al., 2018)"

_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_MEAN = (0.47889522, 0.47227842, 0.43047404)
_STD = (0.24205776, 0.23828046, 0.25874835)
_ARCHIVE = Archive(
    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
    "6ee4d0c996905fe93221de577967a372",
)


def load(options: DataOptions) -> Source:
    """Read train and valid as one pool, and the official test set where it is wanted."""
    root = data_root(options)
    folder = root / "cinic-10"
    for other in (root / "CINIC-10", root):
        if not folder.is_dir() and (other / "valid").is_dir():
            folder = other
    if options.download and not folder.is_dir():
        fetch(_ARCHIVE, folder)
    images, labels = _read(folder, ("train", "valid"))
    test = _read(folder, ("test",)) if options.split == "official" else (None, None)
    return Source(images, labels, _CLASSES, _MEAN, _STD, *test)


def _read(folder: Path, parts: tuple[str, ...]) -> tuple[Images, Ints]:
    """Read the images of some of the three parts."""
    files: list[Path] = []
    labels: list[int] = []
    for part in parts:
        for label, name in enumerate(_CLASSES):
            found = sorted((folder / part / name).glob("*.png"))
            if not found:
                raise UserError(
                    f"data.root: {folder / part / name} holds no .png files, so unpack "
                    f"{_ARCHIVE.url} in {folder} (or set data.root or $FEDTAILOR_DATA to the "
                    "folder above it), or set data.download = true."
                )
            files += found
            labels += [label] * len(found)
    # A few of the images are stored as gray; the published statistics are of colour.
    return read_pictures(files, None, "rgb", "data.root"), np.array(labels, dtype=np.int64)
