"""Static twins: the search spaces' networks by hand in stock PyTorch, to check and time ours."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def load_by_position(twin: nn.Module, tensors: Iterable[Tensor]) -> None:
    """Copy the tensors into the twin's parameters in order; shapes may differ by trailing ones."""
    parameters, sources = list(twin.named_parameters()), list(tensors)
    if len(parameters) != len(sources):
        raise ValueError(f"the twin has {len(parameters)} parameters, got {len(sources)} tensors")
    with torch.no_grad():
        for (name, parameter), source in zip(parameters, sources, strict=True):
            if _without_trailing_ones(parameter) != _without_trailing_ones(source):
                shapes = f"{tuple(parameter.shape)} and {tuple(source.shape)}"
                raise ValueError(f"the twin's {name} and its tensor have the shapes {shapes}")
            parameter.copy_(source.reshape(parameter.shape))


def _without_trailing_ones(tensor: Tensor) -> list[int]:
    shape = list(tensor.shape)
    while shape and shape[-1] == 1:
        shape.pop()
    return shape
