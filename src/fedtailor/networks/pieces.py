"""Networks made of pieces, so that what two architectures share is built and computed once.

A piece is a value: equal pieces that hold equal weights compute the same. Modules are kept per
piece and not per architecture, and a population of architectures is a trie of pieces.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.networks.norms import is_norm
from fedtailor.networks.pointwise import stride_by_slicing

M = TypeVar("M", bound=nn.Module)
FILLS = {Tensor.uniform_, Tensor.normal_, Tensor.fill_, Tensor.zero_}


@dataclass(frozen=True, slots=True)
class Piece:
    """One module of a chain: its name in the network, its class and what the class is built with.

    The arguments decide everything about the module but its weights.
    """

    name: str
    kind: Callable[..., nn.Module]
    arguments: tuple[Hashable, ...] = ()

    def build(self) -> nn.Module:
        """Build the module."""
        return self.kind(*self.arguments)


class Chain(nn.Module):
    """Modules in a row, each fed what the one before returns: a tensor, or a tuple of them."""

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        super().__init__()
        for name, module in modules:
            if name in self._modules:
                raise ValueError(f"two pieces of a chain are called {name!r}")
            self.add_module(name, module)

    def forward(self, state: Any) -> Any:
        """Pass the images through."""
        for module in self.children():
            state = module(state)
        return state


class ChainSpace(SearchSpace):
    """A search space whose networks are chains."""

    @abstractmethod
    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        """List the pieces of an architecture; the last is the classifier and is called "head"."""

    def build(self, arch: Arch, task: Task) -> nn.Module:
        """Build the network."""
        return Chain((piece.name, piece.build()) for piece in self.pieces(arch, task))


def pieces_of(space: SearchSpace, arch: Arch, task: Task) -> tuple[Piece, ...]:
    """List the pieces of an architecture; a network that is no chain is one nameless piece."""
    if isinstance(space, ChainSpace):
        return space.pieces(arch, task)
    return (Piece("", space.build, (arch, task)),)


def blueprint(build: Callable[[], M]) -> M:
    """Build a module on the meta device: shapes and names, no memory, no time spent on values."""
    with torch.device("meta"), _Unfilled():
        return build()


class _Unfilled(TorchFunctionMode):
    """Skip the filling of meta tensors, which torch does slowly and to no effect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function unless it only fills a meta tensor."""
        if func in FILLS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def allocate(module: nn.Module, device: str) -> nn.Module:
    """Give a module that was built on the meta device memory, its content left to the caller.

    Batch-norm statistics are reset; tables that the module made with device="cpu" are kept. On the
    CPU networks are put into channels_last, and what is not safe so is guarded here.
    """
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    if len(names) > len(list(module.parameters())):
        raise UserError("space.name: modules that share a parameter are not supported")
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                part._parameters[name] = nn.Parameter(torch.empty_like(parameter, device=device))
        for name, buffer in part._buffers.items():
            if buffer is None:
                continue
            if buffer.is_meta and not is_norm(part):
                raise UserError(
                    f"space.name: {type(part).__name__} must make its buffer {name!r} with "
                    'device="cpu": networks are built without values'
                )
            empty = torch.empty_like(buffer, device=device)
            part._buffers[name] = empty if buffer.is_meta else buffer.to(device)
        if is_norm(part):
            part.reset_running_stats()
        if device == "cpu":
            stride_by_slicing(part)
    return module
