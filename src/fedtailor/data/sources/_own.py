"""A user's own data: a folder of images, an .npz file, or a function in a Python file."""

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Images, Source
from fedtailor.data.sources._folder import load_folder

_KEYS = {"x", "y", "client"}


def load(options: DataOptions) -> Source:
    """Read what data.path points to."""
    assert options.path is not None
    path = Path(options.path).expanduser()
    if path.is_dir():
        return load_folder(path, options)
    if options.size is not None or options.color is not None:
        field = "size" if options.size is not None else "color"
        raise UserError(f"data.{field}: only a folder of images is converted, so remove it.")
    if match := re.fullmatch(r"(.+\.py):([A-Za-z_]\w*)", str(path)):
        return load_function(Path(match[1]), match[2])
    if path.suffix == ".npz" and path.is_file():
        return load_npz(path)
    raise UserError(
        f"data.path: there is no folder of images or .npz file at {path}, so give the path of one, "
        "or my_data.py:function."
    )


def load_npz(path: Path) -> Source:
    """Read the arrays x, y and, where there is one, client."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays: dict[str, npt.NDArray[Any]] = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"data.path: {path} cannot be read as an .npz file of plain arrays ({error}), "
            "so write it anew with numpy.savez."
        ) from error
    if not {"x", "y"} <= set(arrays) <= _KEYS:
        raise UserError(
            f"data.path: {path} holds {', '.join(sorted(arrays)) or 'nothing'}, "
            "but must hold x and y, and may hold client."
        )
    return from_arrays(arrays["x"], arrays["y"], arrays.get("client"))


def load_function(file: Path, name: str) -> Source:
    """Call a function without arguments that returns (x, y), (x, y, client) or a Source."""
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
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise UserError(
            f"data.path: {name} returned {type(result).__name__}, "
            "but must return (x, y), (x, y, client) or a Source."
        )
    return from_arrays(*(np.asarray(array) for array in result))


def from_arrays(
    x: npt.NDArray[Any], y: npt.NDArray[Any], client: npt.NDArray[Any] | None = None
) -> Source:
    """Make a Source of images in any common layout, whole-number labels and a client column."""
    images = channels_first(x)
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise UserError(f"data.path: x is {x.dtype}, so make it uint8 (0 to 255) or float32.")
    if y.dtype.kind not in "iu" or y.ndim != 1 or y.size == 0 or y.min() < 0:
        raise UserError(
            f"data.path: y is {y.dtype} of shape {y.shape}, "
            "but must be one whole number from 0 for each image."
        )
    if images.dtype != np.uint8:
        images = images.astype(np.float32)
    names: tuple[str, ...] = ()
    if client is not None:
        if client.dtype.kind not in "iuU" or client.shape != y.shape:
            raise UserError(
                f"data.path: client is {client.dtype} of shape {client.shape}, "
                "but must be one whole number or name for each image."
            )
        found, client = np.unique(client, return_inverse=True)
        names = tuple(str(name) for name in found)
    half = (0.5,) * images.shape[1]
    classes = tuple(str(label) for label in range(int(y.max()) + 1))
    labels = y.astype(np.int64)
    return Source(images, labels, classes, half, half, client=client, client_names=names)


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
