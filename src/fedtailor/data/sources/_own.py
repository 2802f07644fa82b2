"""A user's own data: a folder of images, files of clients, an .npz file or a function."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.core.npz import read_npz
from fedtailor.data.options import DataOptions
from fedtailor.data.source import SPLITS, Images, Ints, Source
from fedtailor.data.sources._folder import load_folder
from fedtailor.data.sources._per_client import Clients, per_client_files, read_clients

_KEYS = {"x", "y", "client", "split"}


def load(options: DataOptions) -> Source:
    """Read what data.path points to."""
    assert options.path is not None
    path = Path(options.path).expanduser()
    files = per_client_files(path)
    if path.is_dir() and files is None:
        return load_folder(path, options)
    if options.size is not None or options.color is not None:
        field = "size" if options.size is not None else "color"
        raise UserError(f"data.{field}: only a folder of images is converted, so remove it.")
    if files is not None:
        return from_clients(read_clients(files))
    if match := re.fullmatch(r"(.+\.py):([A-Za-z_]\w*)", str(path)):
        return load_function(Path(match[1]), match[2])
    if path.suffix == ".npz" and path.is_file():
        return load_npz(path)
    raise UserError(
        f"data.path: there is no folder of images or .npz file at {path}, so give the path of one, "
        "or my_data.py:function."
    )


def load_npz(path: Path) -> Source:
    """Read the arrays x, y and, where there are any, client and split."""
    try:
        arrays = read_npz(path)
    except UserError as error:
        raise UserError(f"data.path: {error}, so write it anew with numpy.savez.") from None
    if not {"x", "y"} <= set(arrays) <= _KEYS:
        raise UserError(
            f"data.path: {path} holds {', '.join(sorted(arrays)) or 'nothing'}, "
            "but must hold x and y, and may hold client and split."
        )
    return from_arrays(arrays["x"], arrays["y"], arrays.get("client"), arrays.get("split"))


def load_function(file: Path, name: str) -> Source:
    """Call a function without arguments that returns arrays, x and y at least, or a Source."""
    if not file.is_file():
        raise UserError(f"data.path: there is no file {file}, so give the path of one.")
    function = getattr(registry.import_file(file), name, None)
    if not callable(function):
        raise UserError(f"data.path: {file} has no function {name}, so name one it has.")
    try:
        result: Any = function()
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"data.path: {name} in {file} raised {said}, so mend it.") from error
    if isinstance(result, Source):
        return result
    if not isinstance(result, tuple) or len(result) not in (2, 3, 4):
        raise UserError(
            f"data.path: {name} returned {type(result).__name__}, "
            "but must return (x, y), (x, y, client), (x, y, client, split) or a Source."
        )
    return from_arrays(*(np.asarray(array) for array in result))


def from_clients(clients: Clients) -> Source:
    """Make a Source of clients' own train and test images; floats are scaled by nothing."""
    parts = [
        (name, split, *arrays) for name, own in clients.items() for split, arrays in own.items()
    ]
    shapes = sorted({x.shape[1:] for _, _, x, _ in parts})
    if len(shapes) != 1:
        raise UserError(f"data.path: images have the shapes {shapes}, so make them alike.")
    sizes = [len(y) for *_, y in parts]
    names = np.repeat(np.array([name for name, *_ in parts]), sizes)
    splits = np.repeat(np.array([split for _, split, *_ in parts]), sizes)
    x = np.concatenate([x for _, _, x, _ in parts])
    y = np.concatenate([y for *_, y in parts])
    source = from_arrays(x if x.dtype == np.uint8 else x.astype(np.float32), y, names, splits)
    if source.images.dtype == np.uint8:
        return source
    channels = source.images.shape[1]  # other tools give a network the numbers as they are
    return replace(source, mean=(0.0,) * channels, std=(1.0,) * channels)


def from_arrays(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    client: npt.NDArray[Any] | None = None,
    split: npt.NDArray[Any] | None = None,
) -> Source:
    """Make a Source of images in any common layout, whole-number labels and the other columns."""
    images = channels_first(x)
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise UserError(f"data.path: x is {x.dtype}, so make it uint8 (0 to 255) or float32.")
    if y.dtype.kind not in "iu" or y.ndim != 1 or y.size == 0:
        raise UserError(
            f"data.path: y is {_kind(y)}, but must be one whole number from 0 for each image."
        )
    if len(y) != len(images):
        raise UserError(f"data.path: x has {len(images)} images, but y has {len(y)} labels.")
    if y.min() < 0:
        raise UserError(f"data.path: y holds {y.min()}, but classes are numbered from 0.")
    if images.dtype != np.uint8:
        images = images.astype(np.float32)
    names, owner = _numbered(client, y.shape)
    half = (0.5,) * images.shape[1]
    classes = tuple(str(label) for label in range(int(y.max()) + 1))
    labels, parts = y.astype(np.int64), None if split is None else _parts(split, y.shape)
    return Source(
        images, labels, classes, half, half, client=owner, client_names=names, split=parts
    )


def _numbered(
    client: npt.NDArray[Any] | None, shape: tuple[int, ...]
) -> tuple[tuple[str, ...], Ints | None]:
    """Return the clients' names, and the number of the client of every row."""
    if client is None:
        return (), None
    if client.dtype.kind not in "iuU" or client.shape != shape:
        raise UserError(
            f"data.path: client is {_kind(client)}, but must be one whole number or name for each "
            f"of {shape[0]} images."
        )
    found, owner = np.unique(client, return_inverse=True)
    return tuple(str(name) for name in found), owner


def _parts(split: npt.NDArray[Any], shape: tuple[int, ...]) -> Ints:
    """Return the number of the part that every row is said to belong to."""
    known = {str(word): part for part, word in enumerate(SPLITS)} | {"0": 0, "1": 1, "2": 2}
    meant = "one of train, val and test (or 0, 1 and 2)"
    if split.shape != shape or split.dtype.kind not in "iuU":
        raise UserError(
            f"data.path: split is {_kind(split)}, but must be {meant} for each of {shape[0]} "
            "images."
        )
    if unknown := {str(word) for word in np.unique(split)} - known.keys():
        raise UserError(f"data.path: split holds {min(unknown)!r}, but must be {meant}.")
    return np.array([known[str(word)] for word in split.tolist()], dtype=np.int64)


def _kind(array: npt.NDArray[Any]) -> str:
    """Say what an array is, for people."""
    return f"{'text' if array.dtype.kind == 'U' else array.dtype} of shape {array.shape}"


def channels_first(x: npt.NDArray[Any]) -> Images:
    """Return x as (N, C, H, W): one or three channels, last or first, or none."""
    if x.ndim == 3:
        return x[:, None]
    first, last = (x.ndim == 4 and x.shape[at] in (1, 3) for at in (1, -1))
    if first == last:
        why = "both" if first else "neither"
        raise UserError(
            f"data.path: x has shape {x.shape}, where {why} of the second and the last number can "
            "be channels (1 or 3), so bring it to (N, H, W), (N, H, W, C) or (N, C, H, W)."
        )
    return x if first else x.transpose(0, 3, 1, 2)
