"""A data set as arrays, whatever it was read from."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError

Images: TypeAlias = npt.NDArray[Any]  # uint8 or float32
Ints: TypeAlias = npt.NDArray[np.int64]
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Source:
    """Images and labels, before any client owns them."""

    images: Images  # (N, C, H, W), uint8 or float32
    labels: Ints  # (N,)
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, on the scale where uint8 255 is 1
    std: tuple[float, ...]
    test_images: Images | None = None  # the official test set
    test_labels: Ints | None = None
    client: Ints | None = None  # (N,): the client each row belongs to
    client_names: tuple[str, ...] = ()
    split: Ints | None = None  # (N,): the part of SPLITS each row belongs to, where the data says
    notes: tuple[str, ...] = ()  # sentences on what was found there beside the images


def check(source: Source) -> None:
    """Raise a UserError unless the arrays are what Source promises."""
    _check_images(source.images, "images")
    _check_labels(source.labels, len(source.images), len(source.classes), "labels")
    channels = source.images.shape[1]
    for field, values in (("mean", source.mean), ("std", source.std)):
        if len(values) != channels:
            raise UserError(
                f"data.{field}: it has {len(values)} values, but the images have {channels} "
                "channels, so give one for each."
            )
    if not all(np.isfinite([*source.mean, *source.std])) or min(source.std) <= 0:
        raise UserError("data.std: every mean must be finite and every std above zero.")
    if (source.test_images is None) != (source.test_labels is None):
        raise UserError("data.path: test_images and test_labels go together, give both or neither.")
    if source.test_images is not None and source.test_labels is not None:
        _check_images(source.test_images, "test images")
        size = len(source.test_images)
        _check_labels(source.test_labels, size, len(source.classes), "test labels")
        same = source.test_images.dtype == source.images.dtype
        if not same or source.test_images.shape[1:] != source.images.shape[1:]:
            raise UserError("data.path: give test images the type and shape of the others.")
    if source.client is not None:
        _check_labels(source.client, len(source.images), len(source.client_names), "client column")
    if source.split is not None:
        _check_labels(source.split, len(source.images), len(SPLITS), "split column")


def _check_images(images: Images, what: str) -> None:
    """Raise a UserError unless these are images."""
    if images.ndim != 4 or 0 in images.shape:
        raise UserError(
            f"data.path: the {what} have shape {images.shape}, but must be "
            "(images, channels, height, width), none of them zero."
        )
    if images.dtype not in (np.uint8, np.float32):
        raise UserError(
            f"data.path: the {what} are {images.dtype}, so make them uint8 (0 to 255) or float32."
        )
    if images.dtype == np.float32 and not np.isfinite(images).all():
        raise UserError(f"data.path: the {what} hold values that are not finite, so remove them.")


def _check_labels(labels: Ints, rows: int, count: int, what: str) -> None:
    """Raise a UserError unless there is a number from 0 to count-1 for every row."""
    if labels.dtype != np.int64 or labels.shape != (rows,):
        raise UserError(
            f"data.path: the {what} must be int64 of shape ({rows},), "
            f"but are {labels.dtype} of shape {labels.shape}."
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= count:
        raise UserError(
            f"data.path: the {what} run from {low} to {high}, but must lie in 0 to {count - 1}."
        )
