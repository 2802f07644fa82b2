"""Batches: rows to normalised images, changed at random where that is wanted."""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from fedtailor.core.types import Augment, Examples


def epoch(examples: Examples, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield all rows once, shuffled, `size` at a time.

    A last batch of one row is joined to the one before it: batch norm cannot train on one.
    """
    yield from _parts(torch.randperm(len(examples), generator=rng), size)


def batch_count(examples: int, size: int) -> int:
    """Count the batches of an epoch."""
    return len(_parts(torch.empty(examples), size))


def chunks(examples: Examples, size: int) -> Iterator[Tensor]:
    """Yield all rows once, in order, `size` at a time, a last one joined as in `epoch`."""
    yield from _parts(torch.arange(len(examples)), size)


def even_chunks(examples: Examples, most: int) -> Iterator[Tensor]:
    """Yield all rows once, in order, in parts of nearly equal size: means over them are fair."""
    yield from torch.arange(len(examples)).tensor_split(-(-len(examples) // most))


def _parts(rows: Tensor, size: int) -> list[Tensor]:
    parts = list(rows.split(size))
    if size > 1 and len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def batch(
    examples: Examples, rows: Tensor, rng: torch.Generator | None, device: str
) -> tuple[Tensor, Tensor]:
    """Return images and labels of rows (positions in the index), augmented when rng is given."""
    index = examples.index[rows]
    images = examples.images.index_select(0, index)
    labels = examples.labels.index_select(0, index)
    if rng is not None and examples.augment != Augment():
        images = augment(images, examples.augment, rng)
    unit = 255.0 if images.dtype == torch.uint8 else 1.0
    scale, shift = _normaliser(examples.mean, examples.std, unit)
    # The layout is changed last: the arithmetic is many times faster on contiguous channels.
    images = images.float().mul_(scale).add_(shift).contiguous(memory_format=torch.channels_last)
    return images.to(device), labels.to(device)


@cache
def _normaliser(
    mean: tuple[float, ...], std: tuple[float, ...], unit: float
) -> tuple[Tensor, Tensor]:
    """Return scale and shift: x * scale + shift is (x / unit - mean) / std."""
    means, stds = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
    scale, shift = 1 / (unit * stds), -means / stds
    return scale.float().view(1, -1, 1, 1), shift.float().view(1, -1, 1, 1)


def augment(images: Tensor, how: Augment, rng: torch.Generator) -> Tensor:
    """Crop, flip and blank, each image by its own draws; what lies outside is 0."""
    count, channels, height, width = images.shape
    y = torch.arange(height).expand(count, -1)
    x = torch.arange(width).expand(count, -1)
    if how.flip:  # right to left in the result, so before x is shifted
        flips = torch.randint(2, (count, 1), generator=rng).bool()
        x = torch.where(flips, width - 1 - x, x)
    if how.crop:
        shift = torch.randint(-how.crop, how.crop + 1, (2, count, 1), generator=rng)
        y, x = y + shift[0], x + shift[1]
    keep = _inside(y, height)[:, :, None] & _inside(x, width)[:, None, :]
    if how.cutout:
        keep = keep & ~_hole(images, how.cutout, rng)
    at = y.clamp(0, height - 1)[:, :, None] * width + x.clamp(0, width - 1)[:, None, :]
    flat = images.reshape(count, channels, -1)
    moved = flat.gather(2, at.view(count, 1, -1).expand(-1, channels, -1))
    return moved.view_as(images) * keep[:, None]


def _inside(position: Tensor, size: int) -> Tensor:
    """Return where a position lies in the image."""
    return (position >= 0) & (position < size)


def _hole(images: Tensor, side: int, rng: torch.Generator) -> Tensor:
    """Return a square for each image, its centre anywhere, cut off at the edges."""
    count, _, height, width = images.shape
    top = torch.randint(height, (count, 1), generator=rng) - side // 2
    left = torch.randint(width, (count, 1), generator=rng) - side // 2
    y, x = torch.arange(height) - top, torch.arange(width) - left
    return _inside(y, side)[:, :, None] & _inside(x, side)[:, None, :]
