"""What CIFAR-10 and CIFAR-100 have in common: the official python files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Images, Ints, Source
from fedtailor.data.sources._arrays_only import read_arrays
from fedtailor.data.sources._download import Archive, check_md5, data_root, fetch


@dataclass(frozen=True)
class Cifar:
    """The files of one of the two data sets."""

    folder: str
    train: dict[str, str]  # file name to md5
    test: dict[str, str]
    meta: dict[str, str]
    labels: str  # the key of the labels, and of their names
    names: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    archive: Archive


def load_cifar(cifar: Cifar, options: DataOptions) -> Source:
    """Read a CIFAR data set from the data root, every file checked."""
    folder = data_root(options) / cifar.folder
    files = cifar.train | cifar.test | cifar.meta
    missing = [name for name in files if not (folder / name).is_file()]
    if missing and options.download:
        fetch(cifar.archive, folder)
    elif missing:
        raise UserError(
            f"data.root: {folder} lacks {', '.join(missing)}, so unpack {cifar.archive.url} in "
            f"{folder.parent} (or set data.root or $FEDTAILOR_DATA to where it is unpacked), "
            "or set data.download = true."
        )
    meta = [_read(folder / name, md5) for name, md5 in cifar.meta.items()]
    images, labels = _join(folder, cifar.train, cifar.labels)
    official = options.split == "official"
    test = _join(folder, cifar.test, cifar.labels) if official else (None, None)
    classes = tuple(meta[0][cifar.names])
    return Source(images, labels, classes, cifar.mean, cifar.std, *test)


def _join(folder: Path, files: dict[str, str], key: str) -> tuple[Images, Ints]:
    """Read several files as one pair of arrays."""
    parts = [_read(folder / name, md5) for name, md5 in files.items()]
    images = np.concatenate([part["data"] for part in parts])
    labels = np.concatenate([part[key] for part in parts])
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _read(file: Path, md5: str) -> dict[str, Any]:
    """Read a file that is known to be the published one, and even so as data only."""
    check_md5(file, md5)
    return unpickle(file.read_bytes())


def unpickle(content: bytes) -> dict[str, Any]:
    """Return the values of a CIFAR file; refuse one that would run code."""
    try:
        return read_arrays(content)
    except Exception as error:
        raise UserError(f"data.root: this is no CIFAR file ({error}), so replace it.") from error
