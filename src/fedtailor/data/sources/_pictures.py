"""Image files to one array, converted only as the config says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError
from fedtailor.data.source import Images

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {"rgb": "RGB", "gray": "L"}


def read_pictures(
    files: Sequence[Path], size: int | None, color: str | None, field: str = "data.path"
) -> Images:
    """Read image files of one size and mode into (N, C, H, W), or make them so as told."""
    first = read_picture(files[0], size, color, field)
    images = np.empty((len(files), *first.shape), dtype=np.uint8)
    images[0] = first
    for row, file in enumerate(files[1:], start=1):
        image = read_picture(file, size, color, field)
        if len(image) != len(first):
            raise UserError(
                f"data.color: {file} has {len(image)} channels and {files[0]} has {len(first)}, "
                'so set it to "rgb" or "gray" to convert them.'
            )
        if image.shape != first.shape:
            raise UserError(
                f"data.size: {file} is {_size(image)} and {files[0]} is {_size(first)}, "
                "so set it to the pixels they are to be resized to."
            )
        images[row] = image
    return images


def read_picture(
    file: Path, size: int | None, color: str | None, field: str
) -> npt.NDArray[np.uint8]:
    """Read an image file into (C, H, W)."""
    from PIL import Image  # here, because only some data sets are of image files

    try:
        with Image.open(file) as opened:
            opened.load()
            if getattr(opened, "is_animated", False) and opened.format != "MPO":
                raise ValueError("it has more than one frame")
            image = _convert(opened, color, file)
            if size is not None:
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{field}: {file} cannot be read as an image ({reason}), so mend or remove it."
        ) from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _convert(image: Image, color: str | None, file: Path) -> Image:
    """Convert to 8-bit gray or colour; transparency is dropped."""
    if color is None:
        if image.mode not in ("L", "RGB"):
            raise UserError(
                f"data.color: {file} is of mode {image.mode}, neither 8-bit gray nor rgb, "
                'so set it to "gray" or "rgb" to convert the images.'
            )
        return image
    if image.mode.startswith("I"):
        image = _from_16_bits(np.asarray(image))
    if image.mode == "F":
        raise ValueError("its pixels are floats, which an .npz file can hold")
    if image.mode in ("P", "PA"):  # a palette's transparency survives only this way
        image = image.convert("RGBA")
    return image.convert(_MODES[color])


def _from_16_bits(pixels: npt.NDArray[Any]) -> Image:
    """Scale 0..65535 to 0..255, where Pillow would cut off."""
    from PIL.Image import fromarray

    if pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError("its pixels do not fit into 16 bits")
    return fromarray(np.rint(pixels / 257).astype(np.uint8))


def _size(image: Images) -> str:
    """Return height x width in words."""
    return f"{image.shape[1]}x{image.shape[2]} pixels"
