"""Counting the floating-point operations of a network on the meta device, fast.

Torch's own FlopCounterMode gives the same numbers (where it is right), several times slower: most
of its time goes into working out the shapes that norms and activations return, in Python. For some
operations it imports torch's compiler to do so, which takes most of a second.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
ELEMENTWISE = {
    aten.relu, aten.threshold_backward, aten.hardswish, aten.hardswish_backward, aten.silu,
    aten.silu_backward, aten.hardsigmoid, aten.hardsigmoid_backward, aten.gelu,
    aten._softmax, aten._softmax_backward_data,
}  # fmt: skip


class FlopCounter(TorchDispatchMode):
    """Count operations by torch's formulas; what it runs computes nothing but shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard against torch's compiler would import it, for most of a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or only say what shape it returns, and count it."""
        packet, named = func._overloadpacket, kwargs or {}
        if packet in ELEMENTWISE:
            return torch.empty_like(args[0])
        found = SHAPES[packet](*args, **named) if packet in SHAPES else func(*args, **named)
        if packet in FORMULAS:
            self.flops += FORMULAS[packet](*args, **named, out_val=found)
        return found


def _batch_norm(images: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    per_channel = images.new_empty(images.shape[1])
    return torch.empty_like(images), per_channel, per_channel.clone()


def _batch_norm_backward(
    gradient: Tensor, images: Tensor, weight: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    per_channel = [None if weight is None else torch.empty_like(weight) for _ in range(2)]
    return torch.empty_like(images), per_channel[0], per_channel[1]


def _group_norm(
    images: Tensor,
    weight: Any,
    bias: Any,
    count: int,
    channels: int,
    pixels: int,
    groups: int,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    per_group = images.new_empty(count, groups)
    return torch.empty_like(images), per_group, per_group.clone()


def _group_norm_backward(
    gradient: Tensor, images: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return _batch_norm_backward(gradient, images, weight)


def _broadcast(left: Tensor, right: Any, **_: Any) -> Tensor:
    other = right.shape if isinstance(right, Tensor) else ()
    kind = torch.result_type(left, right)
    return left.new_empty(torch.broadcast_shapes(left.shape, other), dtype=kind)


def _quotient(left: Tensor, right: Any, rounding_mode: str | None = None) -> Tensor:
    found = _broadcast(left, right)
    whole = rounding_mode is None and not found.is_floating_point()
    return found.new_empty(found.shape, dtype=torch.get_default_dtype()) if whole else found


def _joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    parts = [part for part in parts if part.shape != (0,)] or parts  # as torch does
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return parts[0].new_empty(shape)


def _mean(values: Tensor, dims: list[int] | None = None, keepdim: bool = False, **_: Any) -> Tensor:
    gone = {dim % values.dim() for dim in dims or range(values.dim())}
    shape = [1 if d in gone else n for d, n in enumerate(values.shape) if keepdim or d not in gone]
    return values.new_empty(shape)


def _matrix_product(bias: Tensor, left: Tensor, right: Tensor, **_: Any) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


def _resized(images: Tensor, size: list[int], *_: Any) -> Tensor:
    return images.new_empty(*images.shape[:2], *size)


def _convolution_backward_flops(
    gradient: Tensor, images: Tensor, weight: Tensor, *rest: Any, **_: Any
) -> int:
    """Count what each gradient costs: as much as the forward pass.

    Torch's own rule forgets the groups, and is hundreds of times too high for depthwise ones.
    """
    wanted = rest[-1][:2]  # of images and of weight; the bias is next to nothing
    return sum(wanted) * 2 * gradient.numel() * weight[0].numel()


SHAPES: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm: _batch_norm,
    aten.native_batch_norm_backward: _batch_norm_backward,
    aten.native_group_norm: _group_norm,
    aten.native_group_norm_backward: _group_norm_backward,
    aten.upsample_bicubic2d: _resized,
    aten.addmm: _matrix_product,
    aten.add: _broadcast,
    aten.mul: _broadcast,
    aten.div: _quotient,
    aten.cat: _joined,
    aten.mean: _mean,
}
FORMULAS: dict[Any, Callable[..., int]] = flop_registry | {
    aten.convolution_backward: _convolution_backward_flops
}
