"""Optimisers of a supernet: momentum and step counts live per entry of the store.

What an architecture does not have is not touched: no decay, no momentum. Buffers grow with the
windows that were trained, so memory follows the subnets and not the supernet.
"""

# Torch has its fast operations on lists of tensors under private names only.
# pyright: reportPrivateImportUsage=false

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedtailor.core.types import Tensors
from fedtailor.networks.store import Shape, Store, view

BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Pull:
    """The gradient of one name in one step: the box that holds all windows, and which entries."""

    name: str
    gradient: Tensor
    touched: Tensor | None  # None: all of the box
    weight: Tensor | None  # the box of the weight itself, where a bound network has it


class SupernetOptimizer:
    """SGD with momentum, or AdamW, on the windows that were trained.

    Args:
        store: whose weights it moves.
        kind: as in `learn.Recipe`.
        momentum: of SGD; AdamW's betas are 0.9 and 0.999.
        weight_decay: acts on trained entries only.
        clip: largest norm of a step's whole gradient; 0: no limit.
    """

    def __init__(
        self,
        store: Store,
        kind: Literal["sgd", "adamw"] = "sgd",
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        clip: float = 0.0,
    ) -> None:
        self.store, self.kind, self.clip = store, kind, clip
        self.momentum, self.weight_decay = momentum, weight_decay
        self._buffers: dict[str, Tensors] = {"first": {}, "second": {}, "steps": {}}
        self._views: dict[tuple[str, str, Shape], Tensor] = {}  # into the buffers

    def step(self, models: Iterable[nn.Module], lr: float) -> None:
        """Move the store by the gradients that bound networks hold, summed where they overlap.

        The gradients are used up: kept modules hold no memory for them.
        """
        with torch.no_grad():
            models = list(models)
            pulls = gradients(models)
            for parameter in (p for model in models for p in model.parameters()):
                parameter.grad = None
            if self.clip and pulls:
                norm = torch.stack([p.gradient.norm() for p in pulls]).norm()
                scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
                torch._foreach_mul_([p.gradient for p in pulls], scale)
            for whole in (True, False):
                chosen = [p for p in pulls if (p.touched is None) == whole]
                if chosen:
                    self._move(chosen, lr)

    def _move(self, pulls: list[Pull], lr: float) -> None:
        """Update some names; entries of a box that nothing touched are put back as they were."""
        weights = [self._weight(p) for p in pulls]
        kinds = ("first",) if self.kind == "sgd" else ("first", "second", "steps")
        buffers = [[self._buffer(kind, p) for p in pulls] for kind in kinds]
        state = [weights, *buffers]
        before = [[t.clone() for t in ts] for ts in state] if pulls[0].touched is not None else []
        gradients = [p.gradient for p in pulls]
        if self.kind == "sgd":
            self._sgd(weights, gradients, buffers[0], lr)
        else:
            self._adamw(weights, gradients, buffers, lr)
        for now, old in zip(state, before, strict=False):
            for pull, new, kept in zip(pulls, now, old, strict=True):
                assert pull.touched is not None
                new.copy_(torch.where(pull.touched, new, kept))

    def _weight(self, pull: Pull) -> Tensor:
        if pull.weight is not None:
            return pull.weight
        return view(self.store.weights[pull.name], tuple(pull.gradient.shape))

    def _sgd(
        self, weights: list[Tensor], gradients: list[Tensor], velocity: list[Tensor], lr: float
    ) -> None:
        if self.weight_decay:
            torch._foreach_add_(gradients, weights, alpha=self.weight_decay)
        if self.momentum:
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_add_(weights, gradients, alpha=-lr)

    def _adamw(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        buffers: list[list[Tensor]],
        lr: float,
    ) -> None:
        first, second, steps = buffers
        torch._foreach_mul_(weights, 1 - lr * self.weight_decay)
        torch._foreach_add_(steps, 1.0)
        torch._foreach_lerp_(first, gradients, 1 - BETAS[0])
        torch._foreach_mul_(second, BETAS[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - BETAS[1])
        for weight, mean, square, count in zip(weights, first, second, steps, strict=True):
            unbiased = square / (1 - BETAS[1] ** count)
            weight.addcdiv_(mean / (1 - BETAS[0] ** count), unbiased.sqrt_() + EPSILON, value=-lr)

    def _buffer(self, kind: str, pull: Pull) -> Tensor:
        """Return a buffer's window, the buffer grown where it was too small for it."""
        wanted = tuple(pull.gradient.shape)
        key = (kind, pull.name, wanted)
        if key not in self._views:
            self._grow(kind, pull.name, wanted, pull.gradient.device)
            self._views[key] = view(self._buffers[kind][pull.name], wanted)
        return self._views[key]

    def _grow(self, kind: str, name: str, wanted: Shape, device: torch.device) -> None:
        kept = self._buffers[kind]
        old = kept.get(name)
        box = wanted if old is None else tuple(map(max, old.shape, wanted))
        if old is not None and old.shape == box:
            return
        layout = torch.channels_last if len(box) == 4 else torch.contiguous_format
        kept[name] = torch.zeros(box, device=device).contiguous(memory_format=layout)
        if old is not None:
            view(kept[name], tuple(old.shape)).copy_(old)
            self._views = {k: v for k, v in self._views.items() if k[:2] != (kind, name)}


def gradients(models: Iterable[nn.Module]) -> list[Pull]:
    """Collect the gradients of bound networks by name; a module that several share counts once."""
    found: dict[str, dict[Shape, nn.Parameter]] = {}
    sums: dict[tuple[str, Shape], Tensor] = {}
    seen: set[int] = set()
    for model in models:
        for name, parameter in model.named_parameters():
            if parameter.grad is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            shape = tuple(parameter.shape)
            of_name = found.setdefault(name, {})
            if shape in of_name:
                sums[name, shape] = sums[name, shape] + parameter.grad
            else:
                of_name[shape] = parameter
                sums[name, shape] = parameter.grad
    return [
        _combined(name, of_name, [sums[name, shape] for shape in of_name])
        for name, of_name in found.items()
    ]


def _combined(name: str, of_name: dict[Shape, nn.Parameter], parts: list[Tensor]) -> Pull:
    """Lay the windows of one name over each other."""
    if len(of_name) == 1:
        return Pull(name, parts[0], None, next(iter(of_name.values())))
    box = tuple(map(max, *of_name))
    total = parts[0].new_zeros(box)
    touched = torch.zeros(box, dtype=torch.bool, device=total.device)
    for shape, gradient in zip(of_name, parts, strict=True):
        view(total, shape).add_(gradient)
        view(touched, shape).fill_(True)
    whole = of_name.get(box)
    return Pull(name, total, touched if whole is None else None, whole)
