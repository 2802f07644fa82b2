"""Testing a network, and setting batch norm up for it. Nobody is charged for either."""

import math

import numpy as np
import torch
from torch.nn import functional as F

from fedtailor.core.types import Examples
from fedtailor.data.batches import batch, chunks, even_chunks
from fedtailor.networks import norms
from fedtailor.networks.network import DivergedError, Network

EVALUATION_BATCH = 256


def evaluate(network: Network, examples: Examples) -> dict[str, float]:
    """Score a network: accuracy, balanced accuracy and macro F1 over the classes present, loss.

    It is left in evaluation mode.
    """
    module, classes, device = network.module.eval(), network.task.classes, network.device
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    loss = torch.zeros((), device=device)
    with torch.inference_mode():
        for rows in chunks(examples, EVALUATION_BATCH):
            images, labels = batch(examples, rows, None, device)
            logits = module(images)
            loss += F.cross_entropy(logits, labels, reduction="sum")
            pairs = (labels * classes + logits.argmax(1)).cpu()
            confusion += torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    mean = loss.item() / len(examples)
    if not math.isfinite(mean):  # argmax of no number would pass for class 0
        raise DivergedError("the model's outputs are not finite: training has diverged")
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


def recalibrate(network: Network, examples: Examples) -> None:
    """Set batch-norm statistics to the averages over these examples; nothing else changes.

    The network is left in evaluation mode.
    """
    with norms.measuring(network.module) as wanted, torch.no_grad():
        if wanted:
            for rows in even_chunks(examples, EVALUATION_BATCH):
                network.module(batch(examples, rows, None, network.device)[0])
