"""What an architecture costs: parameters, multiply-adds, training memory, bytes and round time.

Everything is counted on the meta device: nothing is computed or allocated. Cached by value.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.types import Arch, Budget, SearchSpace, Task


@functools.lru_cache(maxsize=4096)
def parameters(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the trainable parameters."""
    return sum(p.numel() for p in _meta(space, arch, task).parameters())


def parameter_names(space: SearchSpace, arch: Arch, task: Task) -> list[str]:
    """List the trainable parameters."""
    return [name for name, _ in _meta(space, arch, task).named_parameters()]


@functools.lru_cache(maxsize=4096)
def wire_bytes(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the bytes of the weights as they travel: parameters and batch-norm statistics."""
    state = _meta(space, arch, task).state_dict()
    return sum(t.numel() * t.element_size() for t in state.values() if t.is_floating_point())


@functools.lru_cache(maxsize=4096)
def forward_macs(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the multiply-adds of one image's forward pass."""
    model = _meta(space, arch, task).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, *task.shape, device="meta"))
    return counter.get_total_flops() // 2


@functools.lru_cache(maxsize=4096)
def training_macs(
    space: SearchSpace, arch: Arch, task: Task, frozen: frozenset[str] = frozenset()
) -> float:
    """Count the multiply-adds of one image's forward and backward pass, some parameters frozen."""
    model = _meta(space, arch, task)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    images = 2  # batch norm cannot train on one
    rules = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        _loss(model, images, task).backward()
    return counter.get_total_flops() / 2 / images


@functools.lru_cache(maxsize=4096)
def training_memory(space: SearchSpace, arch: Arch, task: Task, batch: int) -> int:
    """Estimate the peak bytes of a training step: weights, gradients, momentum, activations."""
    model = _meta(space, arch, task)
    saved: dict[int, int] = {}
    weights = {p.untyped_storage()._cdata for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = _loss(model, batch, task)  # held, so that no storage is counted under a reused key
    activations = sum(saved.values())
    del loss
    return 3 * sum(p.numel() * p.element_size() for p in model.parameters()) + activations


def round_seconds(macs: float, nbytes: int, budget: Budget) -> float:
    """Model a client's round: compute at its speed, then both directions over its line."""
    return macs / budget.speed + nbytes * 8 / (budget.mbps * 1e6)


def _convolution_backward_flops(
    gradient: list[int], images: list[int], weight: list[int], *rest: Any, **_: Any
) -> int:
    """Count what each gradient costs: as much as the forward pass.

    Torch's own rule forgets the groups, and is hundreds of times too high for depthwise ones.
    """
    wanted = rest[-1][:2]  # of images and of weight; the bias is next to nothing
    return sum(wanted) * 2 * math.prod(gradient) * math.prod(weight[1:])


def _meta(space: SearchSpace, arch: Arch, task: Task) -> nn.Module:
    with torch.device("meta"):
        return space.build(arch, task)


def _loss(model: nn.Module, batch: int, task: Task) -> Tensor:
    images = torch.empty(batch, *task.shape, device="meta")
    labels = torch.empty(batch, dtype=torch.int64, device="meta")
    return F.cross_entropy(model(images), labels)
