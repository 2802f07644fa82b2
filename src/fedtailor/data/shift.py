"""Clients whose images differ: what a lens, a sensor or a hand does to all images of a client."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedtailor.core.rng import numpy_rng_for
from fedtailor.data.options import ShiftKind
from fedtailor.data.source import Ints

Pixels: TypeAlias = npt.NDArray[Any]  # (n, channels, height, width)

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R BT.601
CHUNK = 1024  # images at a time, so that floats are never needed of all


@dataclass(frozen=True)
class Shift:
    """What happens to every image of a group of clients."""

    kind: str = "none"
    amount: float = 0.0  # see `shift_of`
    group: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind in ("none", "grey") else f"{self.kind} {self.amount:.3g}"


def shift_of(kind: ShiftKind, strength: float, seed: int, group: int) -> Shift:
    """Return what a strength means for a group of clients: angles are drawn, the rest is given."""
    amounts = {
        "none": 0.0,
        "low_resolution": float(max(2, round(2 * strength))),  # pixels that become one
        "blur": strength,  # the Gaussian's standard deviation in pixels
        "grey": min(1.0, strength),  # how far towards grey
        "noise": 0.1 * strength,  # standard deviation, where white is 1
        "rotation": float(numpy_rng_for(seed, "shift", group).uniform(-45, 45)) * strength,
        "contrast": 1 / (1 + strength),  # what is left of the distance from the image's mean
    }
    return Shift(kind, amounts[kind], group)


def shifted(images: Pixels, rows: Ints, shift: Shift, seed: int) -> Pixels:
    """Return some rows of images, shifted; an image depends on its row, the shift and the seed."""
    found = np.empty((len(rows), *images.shape[1:]), dtype=images.dtype)
    white = 255.0 if images.dtype == np.uint8 else 1.0
    for first in range(0, len(rows), CHUNK):
        some = rows[first : first + CHUNK]
        changed = images[some].astype(np.float32) / white
        if shift.kind == "noise":
            changed = changed + shift.amount * _noise(some, images.shape[1:], shift.group, seed)
        else:
            changed = CHANGES[shift.kind](changed, shift.amount)
        if images.dtype == np.uint8:
            changed = (changed * white).round().clip(0, white)
        found[first : first + CHUNK] = changed
    return found


def _noise(rows: Ints, shape: tuple[int, ...], group: int, seed: int) -> Pixels:
    """Draw each image's own noise, which is the same whenever the image is asked for."""
    draws = (numpy_rng_for(seed, "shift", group, row) for row in rows.tolist())
    return np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in draws])


def low_resolution(images: Pixels, block: float) -> Pixels:
    """Give all pixels of a square block their mean; blocks at the far edges may be cut off."""
    for axis in (2, 3):
        size, step = images.shape[axis], int(block)
        starts = np.arange(0, size, step)
        lengths = np.diff(starts, append=size)
        sums = np.moveaxis(np.add.reduceat(images, starts, axis=axis), axis, -1)
        means = np.moveaxis(sums / lengths.astype(images.dtype), -1, axis)
        images = np.repeat(means, lengths, axis=axis)
    return images


def blur(images: Pixels, sigma: float) -> Pixels:
    """Blur by a Gaussian; beyond an edge lies what is at the edge."""
    from scipy import ndimage  # here, since few runs need it and all import this file

    return ndimage.gaussian_filter(images, (0, 0, sigma, sigma), mode="nearest")


def grey(images: Pixels, part: float) -> Pixels:
    """Move colours towards their luminance."""
    red, green, blue = (images[:, k : k + 1] * each for k, each in enumerate(LUMINANCE))
    return images * (1 - part) + (red + green + blue) * part


def rotation(images: Pixels, degrees: float) -> Pixels:
    """Turn images about their centres, counter-clockwise; what comes from outside is black."""
    from scipy import ndimage

    return ndimage.rotate(images, degrees, axes=(2, 3), reshape=False, order=1)


def contrast(images: Pixels, left: float) -> Pixels:
    """Move all pixels towards the mean of their image."""
    mean = images.mean(axis=(1, 2, 3), keepdims=True)
    return mean + (images - mean) * left


CHANGES: dict[str, Callable[[Pixels, float], Pixels]] = {
    change.__name__: change for change in (low_resolution, blur, grey, rotation, contrast)
}
