"""The only loops over batches: train, evaluate, recalibrate batch norm."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Client, Examples, Setting, Tensors
from fedtailor.data.batches import batch, chunks, epoch, even_chunks
from fedtailor.networks import cost
from fedtailor.networks.pieces import allocate, blueprint
from fedtailor.networks.store import Store
from fedtailor.training.optimise import SupernetOptimizer
from fedtailor.training.schedule import cosine

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Recipe:
    """How a client trains: fields that every algorithm shares."""

    epochs: Annotated[int, Ge(0)] = 1  # passes over the client's training data in a round
    batch: Annotated[int, Ge(1)] = 32
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Gt(0)] = 0.05
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9  # sgd; adamw's betas are 0.9, 0.999
    weight_decay: Annotated[float, Ge(0)] = 0.0
    schedule: Literal["constant", "cosine", "step"] = (
        "constant"  # over rounds; step: /10 at 1/2, 3/4
    )
    clip: Annotated[float, Ge(0)] = 0.0  # largest norm of the gradient; 0: no limit
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0

    def rate(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        done = (round - 1) / max(rounds, 1)
        if self.schedule == "cosine":
            return self.lr * cosine(done)
        if self.schedule == "step":
            return self.lr * 0.1 ** ((done >= 0.5) + (done >= 0.75))
        return self.lr


@functools.lru_cache(maxsize=16)
def _built(space: SearchSpace, arch: Arch, task: Task, device: str) -> nn.Module:
    model = allocate(blueprint(lambda: space.build(arch, task)), device)
    if device == "cpu":
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    model.arch = arch  # pyright: ignore[reportArgumentType] - a plain tuple, for arch_of
    return model


def arch_of(model: nn.Module) -> Arch:
    """Return the architecture of a network that `model_of` or a store gave; () for any other."""
    return getattr(model, "arch", ())


def model_of(
    setting: Setting, weights: Tensors, device: str, arch: Arch | None = None
) -> nn.Module:
    """Return the network of an architecture holding `weights`, which are copied.

    By default the architecture is the setting's. Built once per process and handed out again:
    what the last holder left in it is gone, and who asks for the same architecture twice has one
    network, not two. Where `weights` have no batch-norm statistics they are reset.
    """
    arch = setting.arch if arch is None else arch
    model = _built(setting.space, arch, setting.task, device)
    model.requires_grad_(True).train()
    model.zero_grad(set_to_none=True)
    load(model, weights)
    return model


def weights_of(model: nn.Module) -> Tensors:
    """Copy a model's parameters and statistics; counters of batches mean nothing to others."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if tensor.is_floating_point()
    }


def parameters_of(model: nn.Module) -> Tensors:
    """Copy a model's parameters alone: what is merged into a supernet, which has no statistics."""
    return pick(weights_of(model), set(dict(model.named_parameters())).__contains__)


def pick(weights: Tensors, wanted: Callable[[str], bool]) -> Tensors:
    """Keep some of the weights, by name."""
    return {name: weight for name, weight in weights.items() if wanted(name)}


def is_head(name: str) -> bool:
    """Tell the classifier's weights by their name."""
    return name.startswith("head.")


def is_body(name: str) -> bool:
    """Tell all other weights."""
    return not is_head(name)


def load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model: all of them, no others; statistics that are absent are reset."""
    left = set(weights)
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
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


def train(
    client: Client,
    model: nn.Module,
    recipe: Recipe,
    *,
    lr: float,
    epochs: int | None = None,
    only: Callable[[str], bool] | None = None,
    pull: tuple[float, Tensors] | None = None,
    purpose: str = "train",
) -> float:
    """Train on the client's training data; return the mean loss of the last epoch.

    `only` says by name which parameters train; modules without any stand still altogether, their
    batch-norm statistics too. `pull` is (strength, anchor): strength * (w - anchor) is added to
    every trained parameter's gradient, never to statistics.
    """
    rng, examples = client.rng(purpose), client.train
    trained = _choose(model, only)
    optimizer = _optimizer(recipe, lr, [p for _, p in trained])
    anchors = [pull[1][name].to(client.device) for name, _ in trained] if pull else []
    frozen = frozenset(n for n, p in model.named_parameters() if not p.requires_grad)
    setting = client.setting
    per_image = cost.training_macs(setting.space, arch_of(model), setting.task, frozen)
    mean = 0.0
    for _ in range(recipe.epochs if epochs is None else epochs):
        total = torch.zeros((), device=client.device)
        for rows in epoch(examples, recipe.batch, rng):
            images, labels = batch(examples, rows, rng, client.device)
            loss = F.cross_entropy(model(images), labels, label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if pull:
                for (_, parameter), anchor in zip(trained, anchors, strict=True):
                    _gradient(parameter).add_(parameter.detach() - anchor, alpha=pull[0])
            if recipe.clip:
                nn.utils.clip_grad_norm_([p for _, p in trained], recipe.clip)
            optimizer.step()
            total += loss.detach() * len(rows)
        client.meter.macs += per_image * len(examples)
        mean = total.item() / len(examples)
        _refuse_divergence(mean, (p for _, p in trained))
    return mean


@dataclass(frozen=True)
class SupernetTraining:
    """What training a supernet came to: the last epoch's mean loss, and what was trained."""

    loss: float
    times: dict[Arch, int]  # batches that each architecture trained on


def train_supernet(
    client: Client,
    store: Store,
    recipe: Recipe,
    scheme: Callable[[torch.Generator], Sequence[Arch]],
    *,
    lr: float,
    epochs: int | None = None,
    distill: bool = False,
    purpose: str = "train",
) -> SupernetTraining:
    """Train a store on the client's training data, some architectures to a batch.

    Momentum and step counts begin anew with every call.

    Args:
        client: whose training data it is.
        store: its weights are trained in place.
        recipe: how to train.
        scheme: draws the architectures of a batch, such as those of `schemes`; their gradients
            are added up for one step.
        lr: the learning rate.
        epochs: passes over the data; by default the recipe's.
        distill: all but the first of a batch learn the first one's outputs instead of the labels.
        purpose: keys the random draws.
    """
    rng, drawing, examples = client.rng(purpose), client.rng(f"{purpose}/archs"), client.train
    optimizer = SupernetOptimizer(
        store, recipe.optimizer, recipe.momentum, recipe.weight_decay, recipe.clip
    )
    times: dict[Arch, int] = {}
    mean = 0.0
    for _ in range(recipe.epochs if epochs is None else epochs):
        total, terms = torch.zeros((), device=client.device), 0
        for rows in epoch(examples, recipe.batch, rng):
            images, labels = batch(examples, rows, rng, client.device)
            archs = scheme(drawing)
            models = [store.bind(arch) for arch in archs]
            teacher = None
            for arch, model in zip(archs, models, strict=True):
                logits = model(images)
                loss = _supernet_loss(logits, labels, teacher, recipe)
                loss.backward()
                if distill and teacher is None:
                    teacher = logits.detach().softmax(1)
                total += loss.detach() * len(rows)
                terms += len(rows)
                times[arch] = times.get(arch, 0) + 1
                client.meter.macs += len(rows) * cost.training_macs(store.space, arch, store.task)
            optimizer.step(models, lr)
        mean = total.item() / max(terms, 1)
        _refuse_divergence(mean, store.weights.values())
    return SupernetTraining(mean, times)


def _supernet_loss(
    logits: Tensor, labels: Tensor, teacher: Tensor | None, recipe: Recipe
) -> Tensor:
    if teacher is None:
        return F.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
    return F.cross_entropy(logits, teacher)


def _refuse_divergence(loss: float, weights: Iterable[Tensor]) -> None:
    if not math.isfinite(loss) or not all(weight.isfinite().all() for weight in weights):
        raise FloatingPointError(
            "the weights or the loss became infinite: lower algorithm.lr or set algorithm.clip"
        )


def _choose(model: nn.Module, only: Callable[[str], bool] | None) -> list[tuple[str, nn.Parameter]]:
    """Let only some parameters train, and set modules to train or to stand still accordingly."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(only is None or only(name))
        parameter.grad = None  # a stale gradient or momentum must not move what is frozen
    _set_mode(model, still=False)
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def _set_mode(module: nn.Module, still: bool) -> None:
    own = list(module.parameters())
    still = still or (bool(own) and not any(p.requires_grad for p in own))
    module.training = not still
    for child in module.children():
        _set_mode(child, still)


def _optimizer(recipe: Recipe, lr: float, trained: list[nn.Parameter]) -> torch.optim.Optimizer:
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=lr, weight_decay=recipe.weight_decay, foreach=True)
    return torch.optim.SGD(
        trained,
        lr=lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        foreach=True,
    )


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:  # not reached by this batch's loss; the pull still acts
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def evaluate(model: nn.Module, examples: Examples, classes: int, device: str) -> dict[str, float]:
    """Score a model: accuracy, balanced accuracy and macro F1 over the classes present, loss."""
    model.eval()
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    loss = torch.zeros((), device=device)
    with torch.inference_mode():
        for rows in chunks(examples, EVALUATION_BATCH):
            images, labels = batch(examples, rows, None, device)
            logits = model(images)
            loss += F.cross_entropy(logits, labels, reduction="sum")
            pairs = (labels * classes + logits.argmax(1)).cpu()
            confusion += torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    mean = loss.item() / len(examples)
    if not math.isfinite(mean):  # argmax of no number would pass for class 0
        raise FloatingPointError("the model's outputs are not finite: training has diverged")
    return scores(confusion.numpy()) | {"loss": mean}


def scores(confusion: np.ndarray) -> dict[str, float]:
    """Derive the scores from counts (true class, predicted class)."""
    right, true, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    present = true > 0
    recall = right[present] / true[present]
    f1 = 2 * right[present] / (true[present] + predicted[present])
    return {
        "accuracy": float(right.sum() / confusion.sum()),
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
    }


def settle_statistics(model: nn.Module) -> None:
    """Take out of batch norm's running statistics what is left of 0 and 1, which they began with.

    For a model that got no statistics (`model_of` without any) and was trained for a few batches.
    """
    for norm in model.modules():
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or norm.momentum is None:
            continue
        mean, variance, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
        if mean is None or variance is None or batches is None or not int(batches):
            continue
        left = (1 - norm.momentum) ** int(batches)
        mean.div_(1 - left)
        variance.sub_(left).div_(1 - left).clamp_(min=0)


def recalibrate(model: nn.Module, examples: Examples, device: str) -> None:
    """Set batch-norm statistics to the averages over these examples; nothing else changes."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
    model.eval()  # no dropout
    for norm in norms:
        norm.train()
    with torch.no_grad():
        for rows in even_chunks(examples, EVALUATION_BATCH):
            model(batch(examples, rows, None, device)[0])
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()
