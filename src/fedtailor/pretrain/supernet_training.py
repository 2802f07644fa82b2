"""Training of a supernet whose subnets' accuracies a predictor learns from.

One random architecture a step by default (single path, Guo et al. 2020): where minutes of two cores
are to do, a sandwich (Yu & Huang 2019: the largest, the smallest and random ones, others taught by
the largest) has too few of its long steps. PerFedSDE-NAS trains the supernet of DARTS by FairNAS
(Chu et al. 2021) and takes published ones for the other spaces; `PAPER` is FairNAS with its
settings for ImageNet. Differs from the papers: the images are the user's, and a batch is computed
in parts, each with its own batch statistics, so that processes can share it.

Every step draws from generators of its own key, and gradients are added up in the order of the
parts, so the weights are the same bytes for any number of workers and whenever it was stopped.
"""

import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core import codec
from fedtailor.core.compute import reproducible
from fedtailor.core.errors import UserError
from fedtailor.core.registry import describe, rebuild
from fedtailor.core.rng import rng_for, seed_for
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Augment, Examples, Json, Setting, Tensors
from fedtailor.data.batches import batch
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store
from fedtailor.pretrain.gradient_team import Follower, Leader, lead
from fedtailor.pretrain.resumable import Checkpoints, OnProgress, remaining_steps
from fedtailor.search import schemes
from fedtailor.training.optimise import SupernetOptimizer
from fedtailor.training.schedule import cosine, rise


@dataclass(frozen=True)
class SupernetTraining:
    """How a supernet is trained."""

    scheme: Literal["single_path", "sandwich", "fair"] = "single_path"
    randoms: Annotated[int, Ge(0)] = 2  # random architectures of a sandwich
    distil: Annotated[float, Interval(ge=0, le=1)] = 0.5  # how far the largest teaches the others
    steps: Annotated[int, Ge(0)] | None = None  # None: those of `epochs`
    epochs: Annotated[float, Ge(0)] = 8.0  # passes over the images
    batch: Annotated[int, Ge(2)] = 64
    parts: Annotated[int, Ge(1)] = 2  # of a batch, each with its own batch statistics
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Gt(0)] = 0.1
    warmup: Annotated[int, Ge(0)] = 100  # steps in which the learning rate rises to lr
    schedule: Literal["constant", "cosine"] = "cosine"
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9  # of sgd
    weight_decay: Annotated[float, Ge(0)] = 5e-5
    clip: Annotated[float, Ge(0)] = 5.0  # largest norm of a step's gradient; 0: no limit
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    crop: Annotated[int, Ge(0)] = 4  # pixels of padding before a random crop
    flip: bool = True
    seed: int = 0

    def length(self, images: int) -> int:
        """Return the number of steps."""
        whole = max(1, images // self.batch)
        return round(self.epochs * whole) if self.steps is None else self.steps

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        fallen = cosine(step, steps) if self.schedule == "cosine" else 1.0
        return self.lr * rise(step, self.warmup) * fallen


PAPER = SupernetTraining(
    "fair", epochs=150, batch=256, parts=1, lr=0.045, warmup=0, weight_decay=4e-5, clip=0.0
)


def step_archs(space: SearchSpace, settings: SupernetTraining, step: int) -> tuple[Arch, ...]:
    """Return the architectures that are trained in a step, counted from 0; a teacher first."""
    rng = rng_for(settings.seed, "supernet", step, "archs")
    if settings.scheme == "sandwich":
        return schemes.sandwich(space, rng, settings.randoms)
    return (schemes.fair if settings.scheme == "fair" else schemes.single_path)(space, rng)


def train_supernet(
    space: SearchSpace,
    task: Task,
    examples: Examples,
    settings: SupernetTraining,
    checkpoint: Path | None = None,
    progress: OnProgress | None = None,
    workers: int = 1,
    every: float = 30.0,
    device: str = "cpu",
) -> Store:
    """Train a supernet from its first weights, or go on where a checkpoint ends.

    Args:
        space: whose supernet.
        task: the images' shape and the number of classes.
        examples: the training images; how they are augmented is up to the settings.
        settings: how.
        checkpoint: where to write one, and to go on from one that is there.
        progress: told the number of steps done and of all.
        workers: processes that share the parts of a batch, this one included.
        every: seconds between checkpoints; there is one at the end in any case.
        device: where the weights are.
    """
    examples = replace(examples, augment=Augment(settings.crop, settings.flip))
    _check(settings, examples)
    problem = _Problem(space, task, examples, settings, device)
    checkpoints = Checkpoints(checkpoint, seconds=every)
    state = _first_state(problem, checkpoints)
    if state.done == problem.steps:
        return Store(space, task, state.weights, device)
    size = max(1, min(workers, settings.parts))
    with reproducible(device), _team(problem, state, size) as team:
        trainer = _Trainer(problem, state)
        left = remaining_steps(state.done, problem.steps, progress, checkpoints, trainer.state)
        for step in left:
            trainer.step(step, team)
        return trainer.store


@dataclass(frozen=True)
class SupernetCheckpoint:
    """All that a training needs to go on."""

    key: str  # of what is trained, and how
    done: int  # steps
    weights: Tensors
    buffers: dict[str, Tensors]  # of the optimiser


@dataclass(frozen=True)
class _Problem:
    """What is trained, on what, and how."""

    space: SearchSpace
    task: Task
    examples: Examples
    settings: SupernetTraining
    device: str

    @cached_property
    def key(self) -> str:
        """Tell it from others by its content."""
        return codec.digest(
            [describe("space", self.space), self.task, self.examples, self.settings]
        )

    @cached_property
    def steps(self) -> int:
        return self.settings.length(len(self.examples))


def _check(settings: SupernetTraining, examples: Examples) -> None:
    size = min(settings.batch, len(examples)) // settings.parts
    if size < 2:
        raise UserError(
            f"pretrain.supernet.batch: a batch of {min(settings.batch, len(examples))} in"
            f" {settings.parts} parts leaves {size} images to a part; batch norm needs two"
        )


def _first_state(problem: _Problem, checkpoints: Checkpoints) -> SupernetCheckpoint:
    state = checkpoints.found(SupernetCheckpoint)
    if state is None:
        setting = Setting(problem.task, problem.space, 1, problem.settings.seed)
        key = problem.key if checkpoints.file is not None else ""
        return SupernetCheckpoint(key, 0, initial_supernet(setting), {})
    if state.key != problem.key:
        raise UserError(
            f"{checkpoints.file}: it is of a supernet of another space or data, or trained"
            " otherwise; delete it or use another folder"
        )
    return state


class _Optimizer(SupernetOptimizer):
    """One that can go on where another was."""

    def restore(self, buffers: dict[str, Tensors]) -> None:
        """Take on another's buffers; they grow as their own do."""
        for kind, of_kind in buffers.items():
            for name, buffer in of_kind.items():
                layout = torch.channels_last if buffer.dim() == 4 else torch.contiguous_format
                fresh = buffer.to(self.store.device, copy=True)
                self._buffers[kind][name] = fresh.contiguous(memory_format=layout)

    def buffers(self) -> dict[str, Tensors]:
        """Return what it remembers."""
        return {kind: dict(of_kind) for kind, of_kind in self._buffers.items()}


class _Trainer:
    """One process's copy of a training: all of them make the same steps."""

    def __init__(self, problem: _Problem, state: SupernetCheckpoint) -> None:
        how = problem.settings
        self.problem, self.done, self._key = problem, state.done, state.key
        self.store = Store(problem.space, problem.task, state.weights, problem.device)
        self._optimizer = _Optimizer(
            self.store, how.optimizer, how.momentum, how.weight_decay, how.clip
        )
        self._optimizer.restore(state.buffers)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def state(self) -> SupernetCheckpoint:
        """Return all that is needed to go on."""
        return SupernetCheckpoint(
            self._key, self.done, self.store.copy(), self._optimizer.buffers()
        )

    def step(self, step: int, team: Leader | Follower) -> None:
        """Compute the parts that are this process's, and move by the sum of all."""
        problem, how = self.problem, self.problem.settings
        models = [self.store.bind(arch) for arch in step_archs(problem.space, how, step)]
        rows = self._rows(step)
        parts = rows.tensor_split(how.parts)
        parameters: list[nn.Parameter] = []
        found: dict[int, Tensor] = {}
        for part in team.parts:
            self._backward(models, step, part, parts[part], len(parts[part]) / len(rows))
            unique = {id(p): p for model in models for p in model.parameters()}
            parameters = [p for p in unique.values() if p.grad is not None]
            found[part] = torch.cat([_gradient(p).reshape(-1) for p in parameters])
            for parameter in parameters:  # sums over parts are made in one order, below
                parameter.grad = None
        total = team.total(found)
        if not total.isfinite().all():
            raise UserError(
                f"pretrain.supernet.lr: the gradient is not finite in step {step + 1}; lower it"
            )
        for parameter, gradient in zip(
            parameters, total.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.grad = gradient.view_as(parameter)
        self._optimizer.step(models, how.rate(step, problem.steps))
        self.done = step + 1

    def _backward(
        self, models: Sequence[nn.Module], step: int, part: int, rows: Tensor, share: float
    ) -> None:
        """Add a part's gradients to the networks', by its share of the batch."""
        problem, how = self.problem, self.problem.settings
        rng = rng_for(how.seed, "supernet", step, "augment", part)
        images, labels = batch(problem.examples, rows, rng, problem.device)
        torch.manual_seed(seed_for(how.seed, "supernet", step, "dropout", part))
        target = _smooth(labels, problem.task.classes, how.label_smoothing)
        for number, model in enumerate(models):
            logits = model(images)
            F.cross_entropy(logits, target).mul(share).backward()
            if how.scheme == "sandwich" and number == 0:
                target = torch.lerp(target, logits.detach().softmax(1), how.distil)

    def _rows(self, step: int) -> Tensor:
        """Return the rows of a step's batch: of an epoch, all but a rest that is no batch."""
        images, size = len(self.problem.examples), self.problem.settings.batch
        epoch, place = divmod(step, max(1, images // size))
        if self._order[0] != epoch:
            rng = rng_for(self.problem.settings.seed, "supernet", epoch, "order")
            self._order = epoch, torch.randperm(images, generator=rng)
        return self._order[1][place * size : (place + 1) * size]


def _smooth(labels: Tensor, classes: int, share: float) -> Tensor:
    """Return labels as probabilities, a share of them spread over all classes."""
    return F.one_hot(labels, classes).float().mul_(1 - share).add_(share / classes)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _team(
    problem: _Problem, state: SupernetCheckpoint, size: int
) -> AbstractContextManager[Leader]:
    tensors, tree = codec.pack((problem.examples, state), copy=False)
    head = {
        "space": describe("space", problem.space),
        "task": codec.pack(problem.task)[1],
        "settings": codec.pack(problem.settings)[1],
        "device": problem.device,
        "tree": tree,
    }
    return lead(follow, head, tensors, problem.settings.parts, size)


def follow(leader: socket.socket, head: Json, tensors: Tensors) -> None:
    """Make the steps of a training beside its leader: the work of a worker process."""
    examples, state = codec.unpack(
        tuple[Examples, SupernetCheckpoint], tensors, head["tree"], copy=False
    )
    settings = codec.unpack(SupernetTraining, {}, head["settings"])
    task = codec.unpack(Task, {}, head["task"])
    problem = _Problem(rebuild("space", head["space"]), task, examples, settings, head["device"])
    trainer, seat = _Trainer(problem, state), Follower(leader, head["share"], problem.device)
    with reproducible(problem.device):
        for step in range(state.done, problem.steps):
            trainer.step(step, seat)
