"""Training of the generator's networks: Adam, a moving average of the weights, and a way back in.

Every step draws from generators of its own key, so that a training that was stopped goes on from
its checkpoint to the same bytes. The settings of PerFedSDE-NAS (supplement, Tables A and B; what
they leave open from DiffusionNAG) are here as constants.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for, seed_for
from fedtailor.core.types import Tensors
from fedtailor.pretrain.resumable import Checkpoints, OnProgress, remaining_steps
from fedtailor.training.schedule import cosine, rise

M = TypeVar("M", bound=nn.Module)
Loss = Callable[[int, torch.Generator], Tensor]  # of a step, counted from 0, and its generator
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Training:
    """How long and how fast."""

    steps: Annotated[int, Ge(0)]
    batch: Annotated[int, Ge(1)] = 256
    lr: Annotated[float, Gt(0)] = 1e-3
    warmup: Annotated[int, Ge(0)] = 100  # steps in which the learning rate rises to lr
    clip: Annotated[float, Ge(0)] = 1.0  # largest norm of the gradient; 0: no limit
    ema: Annotated[float, Interval(ge=0, lt=1)] = 0.999  # decay of the moving average
    schedule: Literal["constant", "cosine"] = "cosine"

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        fallen = cosine(step, self.steps) if self.schedule == "cosine" else 1.0
        return self.lr * rise(step, self.warmup) * fallen

    def decay(self, step: int) -> float:
        """Return the decay of the average after a step, less at first: beginnings are forgotten."""
        return min(self.ema, (2 + step) / (11 + step))


PAPER_SCORE = Training(1_000_000, 256, 2e-5, 1000, 1.0, 0.9999, "constant")
PAPER_SCORE_ARCHITECTURES = 500_000
PAPER_PREDICTOR = Training(20_000, 256, 1e-3, 1000, 1.0, 0.9999, "constant")


@dataclass(frozen=True)
class Checkpoint:
    """All that a training needs to go on."""

    training: Training
    seed: int
    done: int  # steps
    weights: Tensors  # and buffers
    average: Tensors
    adam: dict[str, Tensors]  # of each parameter that it has moved


def train(
    model: M,
    loss: Loss,
    training: Training,
    seed: int,
    checkpoint: Path | None = None,
    every: int = 1000,
    progress: OnProgress | None = None,
) -> M:
    """Train a model in place and leave it in evaluation mode with its averaged weights.

    Args:
        model: its weights are where a training begins that has no checkpoint.
        loss: returns the loss of a step; draws nothing but from the generator it is given.
        training: how.
        seed: of the steps' generators, and of dropout.
        checkpoint: where to write one, and to go on from one that is there.
        every: steps between checkpoints; there is one at the end in any case.
        progress: told the number of steps done and of all.
    """
    run = _Run(model, training, seed)
    checkpoints = Checkpoints(checkpoint, steps=every)
    found = checkpoints.found(Checkpoint)
    if found is not None:
        run.resume(found, checkpoint)
    cuda = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    model.train()
    with torch.random.fork_rng(devices=cuda):
        total = training.steps
        for step in remaining_steps(run.done, total, progress, checkpoints, run.checkpoint):
            torch.manual_seed(seed_for(seed, "dropout", step))
            run.step(loss(step, rng_for(seed, "step", step)))
    model.load_state_dict(model.state_dict() | run.average)
    return model.eval()


class _Run:
    """A training under way."""

    def __init__(self, model: nn.Module, training: Training, seed: int) -> None:
        self.model, self.training, self.seed, self.done = model, training, seed, 0
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.average = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.adam = torch.optim.Adam(list(self.parameters.values()), betas=BETAS, foreach=True)

    def step(self, loss: Tensor) -> None:
        """Move the weights, and their average after them."""
        training, parameters = self.training, list(self.parameters.values())
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, training.clip or math.inf, foreach=True)
        if not norm.isfinite():
            raise UserError(
                f"training: the gradient of step {self.done + 1} is not finite; a lower lr may help"
            )
        for group in self.adam.param_groups:
            group["lr"] = training.rate(self.done)
        self.adam.step()
        weight = 1 - training.decay(self.done)
        with torch.no_grad():
            for average, parameter in zip(self.average.values(), parameters, strict=True):
                average.lerp_(parameter, weight)
        self.done += 1

    def checkpoint(self) -> Checkpoint:
        """Return where it is; the tensors are those that go on changing."""
        moved = {name: self.adam.state.get(p) for name, p in self.parameters.items()}
        adam = {name: dict(state) for name, state in moved.items() if state}
        weights = dict(self.model.state_dict())
        return Checkpoint(self.training, self.seed, self.done, weights, self.average, adam)

    def resume(self, found: Checkpoint, path: Path | None) -> None:
        """Go on from a checkpoint of the same training."""
        if (found.training, found.seed) != (self.training, self.seed):
            raise UserError(f"{path}: the checkpoint of a training with other settings")
        names = list(self.parameters)
        fits = set(found.adam) <= set(names) and _shapes(found.average) == _shapes(self.average)
        if not fits or _shapes(found.weights) != _shapes(self.model.state_dict()):
            raise UserError(f"{path}: the checkpoint of another network")
        self.model.load_state_dict(found.weights)
        for name, average in self.average.items():
            average.copy_(found.average[name])
        state = {names.index(name): dict(entries) for name, entries in found.adam.items()}
        groups = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict({"state": state, "param_groups": groups})
        self.done = found.done


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
