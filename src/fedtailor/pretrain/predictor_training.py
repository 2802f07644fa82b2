"""Training of the predictor on a table of accuracies, and how well it ranks.

A batch has some tasks and some architectures of each. Targets have mean 0 and deviation 1 within a
task: guidance asks which architecture is better on these data, and over all tasks the accuracy
tells mostly how hard a task is (the paper's way, `over="all"`). The images of a task are few, and
what they say of architectures is mostly chance, which a predictor that knows the data would learn
by heart. So targets are pooled: what all tasks have in common, and of what is a task's own as much
as two halves of its images agree on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedtailor.core.space import SearchSpace
from fedtailor.pretrain.accuracy_table import Table
from fedtailor.pretrain.network_training import Loss, Training
from fedtailor.search.diffusion.encoder import Features
from fedtailor.search.diffusion.predictor import Predictor, grouped, kendall_within, standardised
from fedtailor.search.diffusion.score_network import ScoreNetwork
from fedtailor.search.diffusion.sde import EPSILON
from fedtailor.search.diffusion.tokens import one_hot

Target: TypeAlias = Literal["accuracy", "likelihood", "pooled"]
TIMES = {"clean": EPSILON, "half": 0.5, "noisy": 0.75}  # at which a predictor is judged


@dataclass(frozen=True, eq=False)
class Lessons:
    """What a predictor learns from; the last tasks and architectures are kept to judge it."""

    tables: Tensor  # (architectures, tokens, values): clean, as they are diffused
    accuracy: Tensor  # (tasks, architectures): what predictions are judged by
    likelihood: Tensor  # likewise
    halves: Tensor  # (tasks, architectures, 2): likelihoods of two halves of the images
    target: Tensor  # (tasks, architectures): what they learn, such as the accuracy
    own: float  # the share of what is a task's own that is not chance, where targets are pooled
    values: Tensor  # (tasks, classes, images, features)
    present: Tensor  # (tasks, classes, images)
    shares: Tensor  # of the tokens' values, which centred the tables
    tasks: int  # that are learned from
    archs: int


def lessons(
    space: SearchSpace,
    score: ScoreNetwork,
    table: Table,
    features: Sequence[Features],
    kept_tasks: int,
    kept_archs: int,
    target: Target = "accuracy",
) -> Lessons:
    """Lay out a table, and the features of every task's images."""
    tables = score.to_diffused(one_hot(space, table.archs))
    tasks, archs = len(table.tasks) - kept_tasks, len(table.archs) - kept_archs
    truth = table.accuracy.T.contiguous()
    likelihood, halves = table.likelihood.T.contiguous(), table.halves.transpose(0, 1).contiguous()
    learned, own = truth if target == "accuracy" else likelihood, 1.0
    if target == "pooled":
        learned, own = pooled(likelihood[:tasks, :archs], halves[:tasks, :archs])
    values, present = grouped(features)
    return Lessons(
        tables, truth, likelihood, halves, learned, own, values, present, score.shares, tasks, archs
    )


def pooled(values: Tensor, halves: Tensor) -> tuple[Tensor, float]:
    """Draw the values of tasks towards what all tasks have in common, as far as they are chance.

    Returns them, of mean 0 within a task, and the share of what is a task's own that is kept: the
    correlation of two halves, stepped up to the whole by the formula of Spearman and Brown.

    Args:
        values: (tasks, architectures).
        halves: of each task's images, (tasks, architectures, 2).
    """
    common = standardised(values).mean(0)
    first, second, whole = (
        _without(standardised(each), common) for each in (halves[..., 0], halves[..., 1], values)
    )
    scale = first.norm() * second.norm()
    agreement = float((first * second).sum() / scale) if scale > 0 else 0.0
    share = max(0.0, 2 * agreement / (1 + agreement)) if agreement > -1 else 0.0
    return common + share * whole, share


def _without(rows: Tensor, common: Tensor) -> Tensor:
    """Return what of each row a common one does not explain."""
    length = common.square().sum()
    return rows - (rows @ common / length)[:, None] * common if length > 0 else rows


def loss_of(
    predictor: Predictor,
    found: Lessons,
    training: Training,
    per_task: int,
    over: Literal["task", "all"],
) -> Loss:
    """Return the loss of a step: some tasks, and some architectures of each."""
    targets = standardised(found.target[: found.tasks, : found.archs], over)
    number = max(1, training.batch // per_task)

    def loss(step: int, rng: torch.Generator) -> Tensor:
        del step
        tasks = torch.randint(found.tasks, (number,), generator=rng)
        archs = torch.randint(found.archs, (number, per_task), generator=rng)
        embeddings = predictor.embed(found.values[tasks], found.present[tasks])
        t = EPSILON + (1 - EPSILON) * torch.rand(archs.numel(), generator=rng)
        return predictor.loss(
            found.tables[archs.flatten()],
            t,
            targets[tasks[:, None], archs].flatten(),
            embeddings.repeat_interleave(per_task, 0),
            rng,
        )

    return loss


@torch.no_grad()
def ranking(predictor: Predictor, found: Lessons, seed: torch.Generator) -> dict[str, float]:
    """Return Kendall's tau within tasks, of tasks and architectures that were not learned from.

    `own`: with the task's own data, at three levels of noise; `other`: with those of another task;
    `none`: without; `seen`: on tasks that were learned from. Accuracies on few images are noisy, so
    nothing comes near 1: `own_likelihood` is by likelihood, and `halves` is how well the likelihood
    of one half of a task's images ranks by that of the other.
    """
    tables, truth = found.tables[found.archs :], found.accuracy[found.tasks :, found.archs :]
    embeddings = predictor.embed(found.values, found.present)
    kept = embeddings[found.tasks :]

    def tau(embeddings: Tensor | None, t: float, truth: Tensor) -> float:
        times = torch.full((len(tables),), t)
        scale, std = (each[:, None, None] for each in predictor.sde.marginal(times))
        x = scale * tables + std * torch.randn(tables.shape, generator=seed)
        rows = [None] * len(truth) if embeddings is None else list(embeddings)
        return kendall_within(torch.stack([predictor(x, times, row) for row in rows]), truth)

    seen = slice(0, len(truth))
    return {
        **{f"own_{name}": tau(kept, t, truth) for name, t in TIMES.items()},
        "other_clean": tau(kept.roll(1, 0), EPSILON, truth),
        "none_clean": tau(None, EPSILON, truth),
        "own_likelihood": tau(kept, EPSILON, found.likelihood[found.tasks :, found.archs :]),
        "halves": kendall_within(*found.halves[found.tasks :, found.archs :].unbind(2)),
        "seen_tasks_clean": tau(embeddings[seen], EPSILON, found.accuracy[seen, found.archs :]),
    }
