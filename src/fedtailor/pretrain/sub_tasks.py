"""Sub-tasks of a data set, as clients would have them: some of its classes, in some proportions.

A network that tells all classes apart is judged on a sub-task by its logits of that task's classes
alone, so one pass over the images scores it on every task. Half of the tasks have all images of
their classes; the others are non-IID mixtures, proportions drawn from a Dirichlet distribution.

Differs from the papers: DiffusionNAG's predictor learns from tasks of 20 ImageNet classes each,
PerFedSDE-NAS's from the accuracy on the whole of ImageNet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.types import Examples
from fedtailor.data.proportions import largest_remainder, rows_by_class
from fedtailor.data.source import Ints

FLOOR = -80.0  # of log-odds: their exponential is still a float
Positive: TypeAlias = Annotated[float, Gt(0)]
TRIES = 100  # draws of proportions that leave fewer than two classes


@dataclass(frozen=True, eq=False)
class SubTask:
    """What one client has to tell apart, and by which images that is judged."""

    classes: tuple[int, ...]  # ascending
    images: Tensor  # (n,), int64: positions among the evaluation examples; twice: counts twice
    support: Tensor  # (m,), int64: positions among the training examples, for the predictor


@dataclass(frozen=True)
class TaskDraw:
    """How sub-tasks are drawn."""

    fewest: Annotated[int, Ge(2)] = 2  # classes; their number is log-uniform
    most: Annotated[int, Ge(2)] = 20
    mixtures: Annotated[float, Interval(ge=0, le=1)] = 0.5  # share of tasks
    alphas: tuple[Positive, Positive] = (0.1, 1.0)  # of the mixtures' Dirichlet; log-uniform
    least: Annotated[int, Ge(1)] = 100  # images; where there are fewer, some count repeatedly
    support: Annotated[int, Ge(1)] = 20  # training images of a class, at most


def hold_out(
    examples: Examples, number: int, rng: np.random.Generator
) -> tuple[Examples, Examples]:
    """Split examples: those to train on, and `number` others to evaluate on, as many per class."""
    labels = examples.labels[examples.index]
    if not 0 < number < len(labels):
        raise UserError(
            f"pretrain.images: {number} images are to be held out of {len(labels)}; give fewer"
        )
    first, second = (examples.index[rows] for rows in divided(labels, number, rng))
    return replace(examples, index=first), replace(examples, index=second)


def divided(labels: Tensor, number: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Divide rows: `number` of them are the second part, of each class in proportion."""
    totals = np.bincount(labels.numpy())
    counts = largest_remainder(totals * (number / len(labels)), number)
    rows = rows_by_class(labels.numpy(), len(totals))
    held = [rng.permutation(of_class)[:n] for of_class, n in zip(rows, counts, strict=True)]
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[torch.from_numpy(np.concatenate(held))] = True
    return (~chosen).nonzero()[:, 0], chosen.nonzero()[:, 0]


def draw_tasks(
    labels: Tensor,
    support_labels: Tensor,
    number: int,
    rng: np.random.Generator,
    how: TaskDraw | None = None,
) -> tuple[SubTask, ...]:
    """Draw sub-tasks.

    Args:
        labels: of the evaluation examples.
        support_labels: of the training examples; they must be other images.
        number: of tasks.
        rng: of all draws.
        how: which tasks.
    """
    how = TaskDraw() if how is None else how
    if how.most < how.fewest:
        raise UserError(
            f"pretrain.draw.most: {how.most} classes at most, but {how.fewest} at fewest;"
            " give pretrain.draw.fewest no more"
        )
    if how.alphas[0] > how.alphas[1]:
        raise UserError(
            f"pretrain.draw.alphas: {list(how.alphas)}: the first must not be above the second"
        )
    if not len(labels) or not len(support_labels):
        raise UserError("pretrain.images: too few to train and to judge by; give more")
    classes = int(max(labels.max(), support_labels.max())) + 1
    rows, others = (rows_by_class(each.numpy(), classes) for each in (labels, support_labels))
    both = [c for c in range(classes) if len(rows[c]) and len(others[c])]
    if len(both) < how.fewest:
        raise UserError(
            f"pretrain.data: {len(both)} classes have both training and evaluation images, but"
            f" {how.fewest} are needed"
        )
    return tuple(_draw(rows, others, np.array(both), rng, how) for _ in range(number))


def _draw(
    rows: list[Ints], others: list[Ints], classes: Ints, rng: np.random.Generator, how: TaskDraw
) -> SubTask:
    most = min(how.most, len(classes))
    size = int(np.exp(rng.uniform(np.log(how.fewest), np.log(most + 1))))
    chosen = np.sort(rng.choice(classes, min(size, most), replace=False))
    there = np.array([len(rows[c]) for c in chosen])
    counts = there * -(-how.least // int(there.sum()))  # as often as needed, all images alike
    if rng.random() < how.mixtures:
        counts = _mixture(counts, rng, how)
    chosen, counts = chosen[counts > 0], counts[counts > 0]
    images = [_spread(rows[c], n, rng) for c, n in zip(chosen, counts, strict=True)]
    support = [
        np.sort(rng.permutation(others[c])[: min(n, how.support)])
        for c, n in zip(chosen, counts, strict=True)
    ]
    return SubTask(
        tuple(chosen.tolist()),
        torch.from_numpy(np.concatenate(images)),
        torch.from_numpy(np.concatenate(support)),
    )


def _mixture(even: Ints, rng: np.random.Generator, how: TaskDraw) -> Ints:
    """Return other numbers of images, of the same sum, of two classes at least."""
    low, high = np.log(how.alphas)
    total = int(even.sum())
    for _ in range(TRIES):
        alpha = np.exp(rng.uniform(low, high))
        shares = rng.dirichlet(np.full(len(even), alpha))
        if np.isfinite(shares).all():
            counts = largest_remainder(shares * total, total)
            if (counts > 0).sum() >= 2:
                return counts
    return even


def _spread(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Take `count` rows, each as often as any other or once more."""
    rounds, rest = divmod(count, len(rows))
    return np.sort(np.concatenate([np.repeat(rows, rounds), rng.permutation(rows)[:rest]]))


@dataclass(frozen=True, eq=False)
class TaskMatrices:
    """Sub-tasks as matrices, so that a network is judged on all of them by a few products."""

    labels: Tensor  # (images,), int64
    masks: Tensor  # (classes, tasks): whether the task has the class
    times: Tensor  # (images, tasks): how often the image counts
    first: Tensor  # (images,), bool: those of the first half; of every class as many as others

    def accuracies(self, logits: Tensor) -> Tensor:
        """Return the share of each task's images whose largest logit among its classes is right.

        Of equal logits the first counts, as argmax has it: a dead network must not seem perfect.
        """
        own = logits.gather(1, self.labels[:, None])
        earlier = torch.arange(logits.shape[1]) < self.labels[:, None]
        beaten = (logits > own) | ((logits == own) & earlier)
        right = beaten.float() @ self.masks == 0  # whole numbers: exact in any order
        return _means(right, self.times)

    def likelihoods(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean log-probability of the right class among the task's classes, (tasks,).

        Of few images it ranks networks with less noise than accuracy does. Beside it that of two
        halves of the images, (tasks, 2): how they agree tells how much of it is noise.
        """
        shifted = (logits - logits.amax(1, keepdim=True)).clamp_(min=FLOOR)
        own = shifted.gather(1, self.labels[:, None])
        of_task = shifted.exp() @ self.masks
        found = own - of_task.log_()
        parts = (self.times * half[:, None] for half in (self.first, ~self.first))
        return _means(found, self.times), torch.stack([_means(found, part) for part in parts], 1)


def _means(values: Tensor, times: Tensor) -> Tensor:
    return (values * times).sum(0) / times.sum(0).clamp(min=1)


def task_matrices(labels: Tensor, tasks: Sequence[SubTask], classes: int) -> TaskMatrices:
    """Return sub-tasks as matrices, for evaluation examples of these labels."""
    masks, times = torch.zeros(classes, len(tasks)), torch.zeros(len(labels), len(tasks))
    for number, task in enumerate(tasks):
        masks[list(task.classes), number] = 1.0
        times[:, number] = torch.bincount(task.images, minlength=len(labels)).float()
    first = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        first[(labels == label).nonzero()[::2, 0]] = True
    return TaskMatrices(labels, masks, times, first)
