"""Testing a network, and setting batch norm up for it; whoever does is charged for both."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.types import Examples
from fedtailor.data.batches import batch, chunks, even_chunks
from fedtailor.networks import norms
from fedtailor.networks.network import REMEDY, DivergedError, Network

EVALUATION_BATCH = 256


def evaluate(
    network: Network, examples: Examples, charged: bool = True, known: Tensor | None = None
) -> dict[str, float]:
    """Score a network: accuracy, balanced accuracy and macro F1 over the classes present, loss.

    It is left in evaluation mode.

    Args:
        network: what is tested.
        examples: on what.
        charged: not where a method would go on without it, as what is measured for a report alone.
        known: labels; accuracies on images that have one of these, and on others, are told apart.
    """
    if not len(examples):
        raise ValueError("there are no images to test on: were they joined to the training data?")
    module, classes, device = network.module.eval(), network.task.classes, network.device
    answer = network if charged else module
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    loss = torch.zeros((), device=device)
    with torch.inference_mode():
        for rows in chunks(examples, EVALUATION_BATCH):
            images, labels = batch(examples, rows, None, device)
            logits = answer(images)
            loss += F.cross_entropy(logits, labels, reduction="sum")
            pairs = (labels * classes + logits.argmax(1)).cpu()
            confusion += torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    mean = loss.item() / len(examples)
    if not math.isfinite(mean):  # argmax of no number would pass for class 0
        raise DivergedError(f"the outputs are not finite, training has diverged: {REMEDY}")
    apart = {} if known is None else scores_apart(confusion.numpy(), known.numpy())
    return scores(confusion.numpy()) | {"loss": mean} | apart


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


def scores_apart(confusion: np.ndarray, known: np.ndarray) -> dict[str, float]:
    """Derive the accuracies on seen and on unseen labels, each where there are images."""
    seen, right, true = (
        np.isin(np.arange(len(confusion)), known),
        np.diag(confusion),
        confusion.sum(1),
    )
    return {
        name: float(right[labels].sum() / true[labels].sum())
        for name, labels in (("seen_accuracy", seen), ("unseen_accuracy", ~seen))
        if true[labels].any()
    }


def recalibrate(network: Network, examples: Examples) -> None:
    """Set batch-norm statistics to the averages over these examples; nothing else changes.

    The network is left in evaluation mode.
    """
    with norms.measuring(network.module) as wanted, torch.no_grad():
        if wanted:
            for rows in even_chunks(examples, EVALUATION_BATCH):
                network(batch(examples, rows, None, network.device)[0])
