"""One store of weights for a whole search space; subnets are windows into it.

A window is a function of shapes alone: leading in the first two dimensions (channels), centred in
the others (kernels), operations and blocks by name.
"""

# Torch has its fast operations on lists of tensors under private names only.
# pyright: reportPrivateImportUsage=false

import functools
import operator
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Tensors
from fedtailor.networks.norms import is_norm, is_statistic
from fedtailor.networks.pieces import Chain, Piece, allocate, blueprint, pieces_of
from fedtailor.networks.plans import Planned, assemble, parts_of, plan_of, unnamed

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
KEPT_PIECES = 1024  # modules of a store; one owns its statistics, gradients until they are used


def view(full: Tensor, part: Shape) -> Tensor:
    """Return the window of a tensor: the tensor itself where the shapes agree."""
    if full.shape == part:
        return full
    if len(part) != full.dim() or any(map(operator.gt, part, full.shape)):
        raise ValueError(f"a tensor of shape {tuple(full.shape)} has no window {tuple(part)}")
    strides = full.stride()
    first = full.storage_offset()
    for dimension in range(2, len(part)):
        first += (full.shape[dimension] - part[dimension]) // 2 * strides[dimension]
    return full.as_strided(part, strides, first)  # slices are several times slower


def piece_shapes(piece: Piece) -> Shapes:
    """Return the shapes of a piece's parameters, by their names in the network."""
    found: Shapes = {}
    for part in parts_of(piece):
        found |= _part_shapes(part)
    return found


@functools.lru_cache(maxsize=4096)
def _part_shapes(part: Piece, statistics: bool = False) -> Shapes:
    prefix = f"{part.name}." if part.name else ""
    own = _own_statistics(unnamed(part)) if statistics else _own_shapes(unnamed(part))
    return {prefix + name: shape for name, shape in own.items()}


@functools.lru_cache(maxsize=4096)
def _own_shapes(part: Piece) -> Shapes:
    module = blueprint(part.build)
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


@functools.lru_cache(maxsize=4096)
def _own_statistics(part: Piece) -> Shapes:
    module = blueprint(part.build)
    return {name: tuple(b.shape) for name, b in module.named_buffers() if is_statistic(name)}


def shapes(space: SearchSpace, arch: Arch, task: Task, statistics: bool = False) -> Shapes:
    """Return the shapes of an architecture's parameters and, where wanted, its statistics."""
    found: Shapes = {}
    for piece in pieces_of(space, arch, task):
        found |= piece_shapes(piece)
        if statistics:
            for part in parts_of(piece):
                found |= _part_shapes(part, statistics=True)
    return found


@functools.lru_cache(maxsize=64)
def full_shapes(space: SearchSpace, task: Task, statistics: bool = False) -> Shapes:
    """Return the shapes of the supernet's parameters: the union over `space.cover()`.

    Batch norm's statistics, where wanted, are windows like these.
    """
    found: Shapes = {}
    for arch in space.cover():
        for name, shape in shapes(space, arch, task, statistics).items():
            found[name] = tuple(map(max, found.get(name, shape), shape))
    return found


def cut(weights: Tensors, wanted: Shapes) -> Tensors:
    """Copy windows out of a supernet's weights."""
    return {
        name: view(weights[name], shape).clone(memory_format=torch.contiguous_format)
        for name, shape in wanted.items()
    }


def pruned(weights: Tensors, space: SearchSpace, arch: Arch, task: Task) -> Tensors:
    """Leave out what an architecture has not, by name: no window is cut."""
    left = shapes(space, arch, task, statistics=True)
    return {name: weight for name, weight in weights.items() if name in left}


class Store:
    """A supernet's weights on a device, and the modules that are bound to them.

    Args:
        weights: the supernet's parameters by name, copied; with batch norm's statistics, of all
            names or of none, where these are kept like weights.
    """

    def __init__(
        self, space: SearchSpace, task: Task, weights: Tensors, device: str = "cpu"
    ) -> None:
        self.space, self.task, self.device = space, task, device
        self.weights = {name: _laid_out(weight, device) for name, weight in weights.items()}
        self.keeps_statistics = any(is_statistic(name) for name in weights)
        self._pieces: OrderedDict[Piece, _Bound] = OrderedDict()

    def cut(self, arch: Arch) -> Tensors:
        """Copy an architecture's weights, and its statistics where the store keeps them."""
        wanted = shapes(self.space, arch, self.task, self.keeps_statistics)
        return {n: w.to("cpu") for n, w in cut(self.weights, wanted).items()}

    def bind(self, arch: Arch) -> nn.Module:
        """Return an architecture's network whose parameters are windows of the store.

        Its modules are kept and shared: binding an architecture again, or one that has a piece
        or a part of one in common, resets the gradients, modes and statistics of what they share.
        Statistics that the store keeps are windows too, and are not reset.
        """
        bound = [(p.name, self._bound(p)) for p in pieces_of(self.space, arch, self.task)]
        for _, piece in bound:
            piece.reset()
        modules = [(name, piece.module) for name, piece in bound]
        return Chain(modules) if modules[0][0] else modules[0][1]

    def modules(self, piece: Piece) -> list[nn.Module]:
        """Return the bound module of a piece and all within it, as their last user left them."""
        return self._bound(piece).inner

    def _bound(self, piece: Piece) -> "_Bound":
        if piece in self._pieces:
            self._pieces.move_to_end(piece)
            return self._pieces[piece]
        with torch.inference_mode(False):  # whoever asks first: it may be trained later
            found = self._assemble(piece) if plan_of(piece) else self._whole(piece)
        self._pieces[piece] = found
        if len(self._pieces) > KEPT_PIECES:
            self._pieces.popitem(last=False)
        return found

    def _whole(self, piece: Piece) -> "_Bound":
        return _Bound.of(self._build(piece), resets=not self.keeps_statistics)

    def _assemble(self, piece: Piece) -> "_Bound":
        """Make a piece of its parts, which are bound and kept one by one."""
        parts = [self._bound(part) for part in parts_of(piece)]
        return _Bound.assembled(assemble(piece, [part.module for part in parts]), parts)

    def _build(self, piece: Piece) -> nn.Module:
        module = blueprint(piece.build)
        prefix = f"{piece.name}." if piece.name else ""
        for name, parameter in list(module.named_parameters()):
            owner, _, own = name.rpartition(".")
            bound = nn.Parameter(view(self.weights[prefix + name], tuple(parameter.shape)))
            module.get_submodule(owner)._parameters[own] = bound
        made = allocate(module, self.device)
        for name, buffer in list(made.named_buffers()) if self.keeps_statistics else ():
            if is_statistic(name):
                owner, _, own = name.rpartition(".")
                window = view(self.weights[prefix + name], tuple(buffer.shape))
                made.get_submodule(owner)._buffers[own] = window
        return made

    def load(self, weights: Tensors) -> None:
        """Overwrite all weights; the modules stay, and of what was done with them nothing is left.

        Networks that are bound must be bound again.
        """
        if _kinds(weights) != _kinds(self.weights):
            raise ValueError("other names, shapes or types than the store's")
        for name, weight in weights.items():
            self.weights[name].copy_(weight.detach())
        for piece in self._pieces.values():
            piece.reset()
            piece.reset_counters()

    def copy(self) -> Tensors:
        """Copy all weights, as they travel and rest."""
        return {
            name: weight.to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, weight in self.weights.items()
        }


@dataclass(frozen=True)
class _Bound:
    """A module bound to a store, and what of it must be reset, found once."""

    module: nn.Module
    inner: list[nn.Module]  # the module itself, and all within
    parameters: list[nn.Parameter]
    zeros: list[Tensor]  # what batch norm's statistics begin with
    ones: list[Tensor]

    @staticmethod
    def of(module: nn.Module, resets: bool) -> "_Bound":
        """Look into a module, whose statistics are reset or are the store's."""
        inner = list(module.modules())
        norms = [m for m in inner if is_norm(m) and resets]
        zeros = [b for m in norms for n, b in m.named_buffers() if n != "running_var"]
        ones = [b for m in norms for n, b in m.named_buffers() if n == "running_var"]
        return _Bound(module, inner, list(module.parameters()), zeros, ones)

    @staticmethod
    def assembled(module: Planned, parts: "list[_Bound]") -> "_Bound":
        """Put together what is known of a module's parts."""
        return _Bound(
            module,
            [module, *module.folders, *(m for part in parts for m in part.inner)],
            [p for part in parts for p in part.parameters],
            [b for part in parts for b in part.zeros],
            [b for part in parts for b in part.ones],
        )

    def reset(self) -> None:
        """Forget gradients, statistics and modes."""
        for parameter in self.parameters:
            parameter.grad = None
            parameter.requires_grad_(True)
        for module in self.inner:
            if not module.training:
                module.training = True
        if self.zeros:
            torch._foreach_zero_(self.zeros)
            for variance in self.ones:
                variance.fill_(1.0)

    def reset_counters(self) -> None:
        """Forget how many batches were seen: what `reset` leaves of statistics the store keeps."""
        for norm in self.inner:
            if is_norm(norm) and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.zero_()


def _kinds(weights: Tensors) -> dict[str, tuple[Shape, torch.dtype]]:
    return {name: (tuple(weight.shape), weight.dtype) for name, weight in weights.items()}


def _laid_out(weight: Tensor, device: str) -> Tensor:
    """Copy a weight; kernels with their channels last, where windows of them stay so too."""
    layout = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
    return weight.detach().to(device, copy=True, memory_format=layout)


def coverage(
    space: SearchSpace, archs: Iterable[Arch], task: Task, statistics: bool = False
) -> Tensors:
    """Return for every entry of the supernet whether any of the architectures has it.

    Batch norm's statistics are entries too where that is wanted.
    """
    counted = usage(space, dict.fromkeys(archs, 1), task, statistics)
    return {name: count > 0 for name, count in counted.items()}


def usage(
    space: SearchSpace, times: dict[Arch, int], task: Task, statistics: bool = False
) -> Tensors:
    """Return how often every entry was used by architectures that were used so many times."""
    found = {
        name: torch.zeros(shape, dtype=torch.int32)
        for name, shape in full_shapes(space, task, statistics).items()
    }
    for arch, count in times.items():
        for name, shape in shapes(space, arch, task, statistics).items():
            view(found[name], shape).add_(count)
    return found
