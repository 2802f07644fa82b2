"""Batch norm, computed away: in use it is a scale and a shift, which the layer before can do."""

import copy
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from fedtailor.networks.depthwise import DepthwiseConv2d
from fedtailor.networks.norms import is_norm
from fedtailor.networks.pointwise import PointwiseConv2d

CLOSE = 1e-4  # how far outputs of two forms of a model may be apart, or of the largest, if above 1
Pair: TypeAlias = tuple[str, str]  # names of a layer and of the batch norm that reads it


def folded(model: nn.Module, images: Tensor) -> tuple[nn.Module, int]:
    """Return a model that computes the same with fewer steps, and how many batch norms it lost.

    Layers made to train fast become stock ones. A batch norm goes where what it reads is what a
    layer returns, and outputs for the images stay equal.
    """
    with torch.no_grad():
        found = stock(model)
        pairs, wanted = _pairs(found, images), found(images)
        if _close(all_gone := _without(found, pairs), images, wanted):
            return all_gone, len(pairs)
        lost = 0
        for pair in pairs:  # some layer is read by others, too
            if _close(tried := _without(found, [pair]), images, wanted):
                found, lost = tried, lost + 1
    return found, lost


def stock(model: nn.Module) -> nn.Module:
    """Copy a model, with convolutions as everybody knows them, whose fields ours have, too."""
    found = copy.deepcopy(model)
    for part in found.modules():
        if isinstance(part, DepthwiseConv2d | PointwiseConv2d):
            part.__class__ = nn.Conv2d  # pyright: ignore[reportAttributeAccessIssue]
    return found.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]


def _pairs(model: nn.Module, images: Tensor) -> list[Pair]:
    """Find the batch norms that read the very memory which a layer wrote."""
    made: dict[int, tuple[str, Tensor]] = {}  # holds the tensors: memory must not be used again
    found: list[Pair] = []
    handles = []
    for name, part in model.named_modules():
        if isinstance(part, nn.Conv2d | nn.Linear):

            def wrote(_: nn.Module, __: object, output: Tensor, name: str = name) -> None:
                made[output.data_ptr()] = name, output

            handles.append(part.register_forward_hook(wrote))
        elif is_norm(part):

            def reads(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                before, output = made.get(inputs[0].data_ptr(), ("", inputs[0]))
                if before and output.numel() == inputs[0].numel():
                    found.append((before, name))

            handles.append(part.register_forward_pre_hook(reads))
    model(images)
    for handle in handles:
        handle.remove()
    return found


def _without(model: nn.Module, pairs: list[Pair]) -> nn.Module:
    """Copy a model, some batch norms of it done by the layers before."""
    found = copy.deepcopy(model)
    for names in pairs:
        layer, norm = (found.get_submodule(name) for name in names)
        fuse = fuse_conv_bn_eval if isinstance(layer, nn.Conv2d) else fuse_linear_bn_eval
        fused = fuse(layer, norm).requires_grad_(False)  # pyright: ignore[reportArgumentType]
        found.set_submodule(names[0], fused)
        found.set_submodule(names[1], nn.Identity())
    return found


def _close(model: nn.Module, images: Tensor, wanted: Tensor) -> bool:
    return (model(images) - wanted).abs().max().item() <= allowed(wanted)


def allowed(wanted: Tensor) -> float:
    """Return how far outputs may be from those that are wanted."""
    return CLOSE * max(1.0, wanted.abs().max().item())
