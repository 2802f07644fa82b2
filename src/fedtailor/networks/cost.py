"""What an architecture costs: parameters, multiply-adds, training memory, bytes and round time.

Everything is counted on the meta device: nothing is computed or allocated. Counts are kept per
piece of a network, so that an architecture made of known pieces is a few additions.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Budget
from fedtailor.networks.flops import FlopCounter
from fedtailor.networks.pieces import Piece, blueprint, pieces_of
from fedtailor.networks.store import piece_shapes, shapes

State = tuple[tuple[int, ...], ...]  # the shapes of what flows from piece to piece
FLOAT = 4  # bytes
MIB = 1024**2  # what budgets call a megabyte


def parameters(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the trainable parameters."""
    return sum(math.prod(shape) for shape in shapes(space, arch, task).values())


def parameter_names(space: SearchSpace, arch: Arch, task: Task) -> list[str]:
    """List the trainable parameters."""
    return list(shapes(space, arch, task))


def wire_bytes(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the bytes of the weights as they travel: parameters and batch-norm statistics."""
    return sum(_state_bytes(piece) for piece in pieces_of(space, arch, task))


def forward_macs(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the multiply-adds of one image's forward pass."""
    state: State = (task.shape,)
    total = 0
    for piece in pieces_of(space, arch, task):
        macs, state = _forward(piece, state)
        total += macs
    return total


def training_macs(
    space: SearchSpace, arch: Arch, task: Task, frozen: frozenset[str] = frozenset()
) -> float:
    """Count the multiply-adds of one image's forward and backward pass, some parameters frozen.

    Where nothing is frozen a product costs twice as much backward as forward, but for those of
    the images, which need no gradient.
    """
    state: State = (task.shape,)
    total, needs = 0.0, (False,)
    for piece in pieces_of(space, arch, task):
        if all(needs) and not frozen:
            macs, state = _forward(piece, state)
            total, needs = total + 3 * macs, (True,) * len(state)
        else:
            held = frozen.intersection(piece_shapes(piece))
            macs, state, needs = _training(piece, state, needs, held)
            total += macs
    return total


def training_memory(
    space: SearchSpace, arch: Arch, task: Task, batch: int, optimizer: str = "sgd"
) -> int:
    """Estimate the peak bytes of a training step: weights, gradients, momentum, activations.

    Activations are what autograd keeps for the backward pass, each tensor once.
    """
    state: State = (task.shape,)
    sizes = [batch * math.prod(task.shape) * FLOAT]
    flowing, kept, inside = [0], set[int](), 0  # tensors between pieces are known by number
    needs: tuple[bool, ...] = (False,)
    for piece in pieces_of(space, arch, task):
        found = _kept(piece, state, batch, needs)
        needs = found.needs
        inside += found.inside
        kept |= {flowing[i] for i in found.inputs}
        for shape, source in zip(found.state, found.sources, strict=True):
            if source is None:
                sizes.append(batch * math.prod(shape) * FLOAT)
        new = iter(range(len(sizes) - found.sources.count(None), len(sizes)))
        flowing = [next(new) if source is None else flowing[source] for source in found.sources]
        kept |= {flowing[i] for i in found.outputs}
        state = found.state
    loss = batch * (FLOAT * task.classes + 8) + FLOAT  # log-softmax, labels, their total weight
    activations = inside + sum(sizes[i] for i in kept) + loss
    copies = 4 if optimizer == "adamw" else 3  # weights, gradients and one or two moments
    return copies * FLOAT * parameters(space, arch, task) + activations


def prices(
    space: SearchSpace, arch: Arch, task: Task, batch: int | None = None, optimizer: str = "sgd"
) -> dict[str, float]:
    """Return what an architecture costs, by the names used everywhere; memory for a batch."""
    found = {
        "parameters": float(parameters(space, arch, task)),
        "macs": float(forward_macs(space, arch, task)),
    }
    if batch is not None:
        found["memory_mb"] = training_memory(space, arch, task, batch, optimizer) / MIB
    return found


def round_seconds(macs: float, nbytes: int, budget: Budget) -> float:
    """Model a client's round: compute at its speed, then both directions over its line."""
    return macs / budget.speed + nbytes * 8 / (budget.mbps * 1e6)


@functools.lru_cache(maxsize=1 << 16)
def _state_bytes(piece: Piece) -> int:
    state = blueprint(piece.build).state_dict()
    return sum(t.numel() * t.element_size() for t in state.values() if t.is_floating_point())


@functools.lru_cache(maxsize=1 << 16)
def _forward(piece: Piece, state: State) -> tuple[int, State]:
    module = blueprint(piece.build).eval()
    with torch.no_grad(), FlopCounter() as counter:
        after = module(_inputs(state, 1, (False,) * len(state)))
    return counter.flops // 2, _shapes(after)


@functools.lru_cache(maxsize=1 << 16)
def _training(
    piece: Piece, state: State, needs: tuple[bool, ...], frozen: frozenset[str]
) -> tuple[float, State, tuple[bool, ...]]:
    module, images = blueprint(piece.build), 2  # batch norm cannot train on one
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(_full(piece, name) not in frozen)
    with FlopCounter() as counter:
        after = module(_inputs(state, images, needs))
        wanted = [t for t in _tensors(after) if t.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.empty_like(t) for t in wanted])
    return counter.flops / 2 / images, _shapes(after), _needs(after)


@dataclass(frozen=True)
class _Kept:
    """What autograd keeps of one piece, and where its outputs come from."""

    inside: int  # bytes of tensors that are neither weights nor inputs nor outputs
    inputs: tuple[int, ...]  # inputs that are kept, by position
    outputs: tuple[int, ...]
    state: State
    sources: tuple[int | None, ...]  # per output: the input it is, or None for a new tensor
    needs: tuple[bool, ...]  # per output: whether a gradient flows back to it


@functools.lru_cache(maxsize=1 << 16)
def _kept(piece: Piece, state: State, batch: int, needs: tuple[bool, ...]) -> _Kept:
    module = blueprint(piece.build)
    weights = {p.untyped_storage()._cdata for p in module.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    given = _inputs(state, batch, needs)
    inputs = [t.untyped_storage()._cdata for t in _tensors(given)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        after = module(given)  # held, so that no storage is counted under a reused key
    outputs = [t.untyped_storage()._cdata for t in _tensors(after)]
    sources = tuple(inputs.index(o) if o in inputs else None for o in outputs)
    return _Kept(
        sum(size for key, size in saved.items() if key not in {*weights, *inputs, *outputs}),
        tuple(i for i, key in enumerate(inputs) if key in saved),
        tuple(i for i, key in enumerate(outputs) if key in saved and sources[i] is None),
        _shapes(after),
        sources,
        _needs(after),
    )


def _full(piece: Piece, name: str) -> str:
    return f"{piece.name}.{name}" if piece.name else name


def _inputs(state: State, batch: int, needs: tuple[bool, ...]) -> Any:
    made = tuple(
        torch.empty((batch, *shape), device="meta", requires_grad=need)
        for shape, need in zip(state, needs, strict=True)
    )
    return made if len(state) != 1 else made[0]  # pyright: ignore[reportGeneralTypeIssues]


def _tensors(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def _shapes(state: Any) -> State:
    return tuple(tuple(t.shape[1:]) for t in _tensors(state))


def _needs(state: Any) -> tuple[bool, ...]:
    return tuple(t.requires_grad for t in _tensors(state))
