"""Clients' own train and test files as other tools write them: PFLlib's .npz, LEAF's .json.

Both have a folder train and a folder test, and may have val. PFLlib has a file for each client,
which holds `data`, a pickled object array of {"x": array, "y": array}: it is read as data only.
LEAF has any number of files, each {"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}.
"""

import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError
from fedtailor.data.source import SPLITS
from fedtailor.data.sources._arrays_only import read_arrays

Arrays: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # x and y
Clients: TypeAlias = dict[int | str, dict[str, Arrays]]  # by client, then by split


def per_client_files(folder: Path) -> dict[str, list[Path]] | None:
    """Return the files of each split, where a folder is laid out so."""
    if not all((folder / split).is_dir() for split in ("train", "test")):
        return None
    for suffix in (".npz", ".json"):
        found = {split: sorted((folder / split).glob(f"*{suffix}")) for split in SPLITS}
        if found["train"] and found["test"]:
            return {split: files for split, files in found.items() if files}
    return None


def read_clients(files: dict[str, list[Path]]) -> Clients:
    """Read all clients' images and labels."""
    clients: Clients = {}
    for split, some in files.items():
        for file in some:
            for name, arrays in _read(file).items():
                parts = clients.setdefault(name, {})
                if split in parts:
                    raise UserError(f"data.path: {file} has client {name} once more, so mend it.")
                parts[split] = arrays
    return clients


def _read(file: Path) -> dict[int | str, Arrays]:
    """Read a file: of one client, or of the users that it names."""
    try:
        if file.suffix == ".json":
            users = json.loads(file.read_text(encoding="utf-8"))["user_data"]
            return {name: _from_lists(one) for name, one in users.items()}
        name = int(file.stem) if file.stem.isascii() and file.stem.isdigit() else file.stem
        return {name: _from_npz(file)}
    except UserError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(
            f"data.path: {file} cannot be read as a client's images ({said}); it must be as "
            "PFLlib or LEAF write it, so mend or remove it."
        ) from error


def _from_npz(file: Path) -> Arrays:
    """Read {"x", "y"} out of the object array `data`, or plain arrays x and y."""
    with zipfile.ZipFile(file) as archive:
        if "data.npy" not in archive.namelist():
            with np.load(file, allow_pickle=False) as plain:
                return plain["x"], plain["y"]
        content = io.BytesIO(archive.read("data.npy"))
    if np.lib.format.read_magic(content) != (1, 0):
        raise ValueError("data is not an array of objects")
    shape, _, kind = np.lib.format.read_array_header_1_0(content)
    if shape != () or kind != np.dtype(object):
        raise ValueError(f"data is {kind} of shape {shape}, not one object")
    found = read_arrays(content.read()).item()
    return _array(found["x"]), _array(found["y"])


def _from_lists(user: dict[str, Any]) -> Arrays:
    """Read a user's lists; flat images are squares, grey or of three channels last."""
    x, y = _array(user["x"]), _array(user["y"])
    if x.ndim == 2:
        pixels = x.shape[1]
        for channels in (1, 3):
            side = math.isqrt(pixels // channels)
            if side * side * channels == pixels:
                return x.reshape(len(x), side, side, channels), y
        raise ValueError(f"{pixels} numbers are no square image")
    return x, y


def _array(values: Any) -> npt.NDArray[Any]:
    """Return numbers as an array."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"x and y must be numbers, not {array.dtype}")
    return array
