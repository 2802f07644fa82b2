"""What the cells of DARTS do to maps between their operations; nothing here has weights."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def halves(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixels at even rows and columns, and those at odd ones."""
    return _Halves.apply(maps)  # pyright: ignore[reportReturnType]


def added(pair: tuple[Tensor, Tensor]) -> Tensor:
    """Add two maps."""
    return pair[0] + pair[1]


def added_to(pair: tuple[Tensor, Tensor]) -> Tensor:
    """Add to maps that nobody else holds."""
    return pair[0].add_(pair[1])


def weighted(kind: int, place: int, pair: tuple[Tensor, tuple[Tensor, ...]]) -> Tensor:
    """Scale maps by the weight that stands at a place, among those of a kind of cell."""
    maps, mixing = pair
    return maps * mixing[kind][place]


class _Halves(torch.autograd.Function):
    """Slicing, but for a gradient that is written once and not once per slice."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.shape, ctx.layout = maps.shape, _layout(maps)
        ctx.set_materialize_grads(False)
        height, width = maps.shape[2:]
        # Odd sizes: as many odd pixels as even ones, those outside of the map zero.
        odd = F.pad(maps, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else maps
        return _dense(maps[:, :, ::2, ::2]), _dense(odd[:, :, 1::2, 1::2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, even: Tensor | None, odd: Tensor | None) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = odd if even is None else even
        if given is None:
            return None
        kind = {"dtype": given.dtype, "device": given.device, "memory_format": ctx.layout}
        gradient = torch.empty(ctx.shape, **kind).zero_()
        if even is not None:
            gradient[:, :, ::2, ::2] = even
        if odd is not None:
            height, width = ctx.shape[2] // 2, ctx.shape[3] // 2
            gradient[:, :, 1::2, 1::2] = odd[:, :, :height, :width]
        return gradient


class _Concatenate(torch.autograd.Function):
    """torch.cat, but for dense gradients: batch norm is 7 times slower at slices of channels."""

    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.channels = [part.shape[1] for part in maps]
        return torch.cat(maps, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(_dense(part) for part in gradient.split(ctx.channels, 1))


def concatenate(maps: tuple[Tensor, ...]) -> Tensor:
    """Put the channels of maps one after the other."""
    return _Concatenate.apply(*maps)  # pyright: ignore[reportReturnType]


def _dense(maps: Tensor) -> Tensor:
    """Copy a slice into memory of its own, in the layout of the maps it was taken from."""
    return maps.contiguous(memory_format=_layout(maps))


def _layout(maps: Tensor) -> torch.memory_format:
    return torch.channels_last if maps.stride(1) == 1 else torch.contiguous_format


def dropped(maps: Tensor, chance: float) -> Tensor:
    """Replace the maps of some images by zero, drawn from torch's global generator.

    What is kept is scaled, so that the mean stays.
    """
    keep = 1 - chance
    drawn = torch.rand(len(maps), 1, 1, 1, device=maps.device, dtype=maps.dtype)
    return maps * ((drawn < keep) / keep)
