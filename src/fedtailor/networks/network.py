"""A network in somebody's hands: an architecture, its module, and what of it trains now."""

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedtailor.core.compute import is_finite
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Batch, Meter, Tensors
from fedtailor.networks import cost
from fedtailor.networks.pieces import allocate, blueprint

Wanted = Callable[[str], bool]  # says of a parameter's name whether it is meant


class Network:
    """One holder's network; two of one architecture are two.

    Whoever passes images through it is charged for them: the meter cannot be forgotten.

    Args:
        module: what computes.
        space: of which it is a network.
        task: what it must do.
        arch: its architecture.
        device: where it is.
        meter: counts its multiply-adds; none: nobody is charged.
        live: the names of the parameters that train; by default all.
    """

    def __init__(
        self,
        module: nn.Module,
        space: SearchSpace,
        task: Task,
        arch: Arch = (),
        device: str = "cpu",
        meter: Meter | None = None,
        live: frozenset[str] | None = None,
    ) -> None:
        self.module, self.space, self.task, self.arch = module, space, task, arch
        self.device, self.meter, self._live = device, meter, live
        self._hold: object = None  # while this lives, nobody else is given the module

    @functools.cached_property
    def live(self) -> dict[str, nn.Parameter]:
        """The parameters that train now, by name."""
        return {
            name: parameter
            for name, parameter in self.module.named_parameters()
            if self._live is None or name in self._live
        }

    def only(self, wanted: Wanted) -> "Network":
        """Return the same network, of which some parameters train and the rest stands still."""
        names = frozenset(name for name in self.live if wanted(name))
        view = Network(
            self.module, self.space, self.task, self.arch, self.device, self.meter, names
        )
        view._hold = self._hold
        return view

    def inside(self, module: nn.Module) -> "Network":
        """Return a network that computes by a module which has this one's inside it."""
        view = Network(module, self.space, self.task, self.arch, self.device, self.meter)
        view._hold = self._hold
        return view

    def train(self) -> None:
        """Get ready to train: gradients for what is live, and all else still.

        A module without any live parameter stands still altogether, its statistics too.
        """
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name in self.live)
            parameter.grad = None  # a stale gradient must not move what is frozen
        _set_modes(self.module, still=False)

    def __call__(self, images: Tensor, *more: Any) -> Tensor:
        """Return the logits; charged is training with gradients on, else a forward pass.

        Args:
            images: a batch.
            more: what the module takes beside images, if anything, as one tuple with them.
        """
        self.charge(images)
        return self.module((images, *more) if more else images)

    def loss(self, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        return F.cross_entropy(self(batch.images), batch.labels, label_smoothing=smoothing)

    def gradient(
        self,
        batch: Batch,
        at: Tensors | None = None,
        smoothing: float = 0.0,
        statistics: bool = False,
    ) -> tuple[Tensors, Tensor]:
        """Return the gradient of the loss and the loss; the network itself does not move.

        Args:
            batch: the images and labels.
            at: other values of the live parameters, at which it is taken.
            smoothing: of the labels.
            statistics: whether batch norm's statistics see the batch.
        """
        here = {name: p.detach() for name, p in self.live.items()} if at is None else at
        point = {name: value.detach().requires_grad_() for name, value in here.items()}
        scratch: Tensors = {}
        if not statistics:
            scratch = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        self.charge(batch.images)
        logits = functional_call(self.module, point | scratch, (batch.images,))
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing)
        found = torch.autograd.grad(loss, list(point.values()), materialize_grads=True)
        return dict(zip(point, found, strict=True)), loss.detach()

    def weights(self, statistics: bool = True) -> Tensors:
        """Copy the parameters and, where wanted, the statistics; refuse what is not finite.

        Counters of batches mean nothing to others.
        """
        names = None if statistics else set(dict(self.module.named_parameters()))
        found = weights_of(self.module)
        for name, weight in found.items():
            if not is_finite(weight):
                raise DivergedError(f"the weights became infinite ({name}): {REMEDY}")
        return found if names is None else pick(found, names.__contains__)

    def charge(self, images: Tensor) -> None:
        """Count a pass of images: training with gradients on, else forward."""
        if self.meter is not None:
            each = self._training if torch.is_grad_enabled() else self._forward
            self.meter.macs += each * len(images)

    @functools.cached_property
    def _training(self) -> float:
        names = {name for name, _ in self.module.named_parameters()}
        frozen = frozenset(names - self.live.keys())
        return cost.training_macs(self.space, self.arch, self.task, frozen)

    @functools.cached_property
    def _forward(self) -> int:
        return cost.forward_macs(self.space, self.arch, self.task)


REMEDY = "lower algorithm.lr or set algorithm.clip"


class DivergedError(FloatingPointError):
    """Training left the numbers that a computer has."""


class _Hold:
    """Lives as long as somebody holds a module."""


class _Slot:
    """A module that was built, and who holds it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.holder: Callable[[], object] = lambda: None


@functools.lru_cache(maxsize=16)
def _shelf(space: SearchSpace, arch: Arch, task: Task, device: str) -> list[_Slot]:
    """Keep the modules of an architecture: they are built once and handed out again."""
    return []


def network_of(
    space: SearchSpace,
    arch: Arch,
    task: Task,
    weights: Mapping[str, Tensor],
    device: str = "cpu",
    meter: Meter | None = None,
) -> Network:
    """Return the network of an architecture holding `weights`, which are copied.

    Its module may have been held by others, who are done with it: of them nothing is left. Where
    `weights` have no batch-norm statistics they are reset.
    """
    shelf = _shelf(space, arch, task, device)
    slot = next((slot for slot in shelf if slot.holder() is None), None)
    if slot is None:
        slot = _Slot(_built(space, arch, task, device))
        shelf.append(slot)
    network = Network(slot.module, space, task, arch, device, meter)
    network._hold = hold = _Hold()
    slot.holder = weakref.ref(hold)
    network.train()
    load(slot.module, weights)
    return network


def _built(space: SearchSpace, arch: Arch, task: Task, device: str) -> nn.Module:
    module = allocate(blueprint(lambda: space.build(arch, task)), device)
    if device == "cpu":
        module = module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return module


def _set_modes(module: nn.Module, still: bool) -> None:
    own = list(module.parameters())
    still = still or (bool(own) and not any(p.requires_grad for p in own))
    module.training = not still
    for child in module.children():
        _set_modes(child, still)


def load(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a module: all of them, no others; statistics that are absent are reset."""
    left = set(weights)
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name in left:
                tensor.copy_(weights[name])
                left.remove(name)
            elif name.endswith(("running_mean", "num_batches_tracked")):
                tensor.zero_()
            elif name.endswith("running_var"):
                tensor.fill_(1.0)
            else:
                raise KeyError(f"there is no weight {name!r} for the model")
    if left:
        raise KeyError(f"the model has no weight {sorted(left)[0]!r}")


def weights_of(module: nn.Module) -> Tensors:
    """Copy a module's parameters and statistics."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict(keep_vars=True).items()
        if tensor.is_floating_point()
    }


def pick(weights: Tensors, wanted: Wanted) -> Tensors:
    """Keep some of the weights, by name."""
    return {name: weight for name, weight in weights.items() if wanted(name)}


def is_head(name: str) -> bool:
    """Tell the classifier's weights by their name."""
    return name.startswith("head.")


def is_body(name: str) -> bool:
    """Tell all other weights."""
    return not is_head(name)
