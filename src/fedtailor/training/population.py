"""Evaluating many architectures of one supernet: what they share is computed once.

Architectures form a trie of pieces. It is walked depth first, and what a prefix made of the
images is kept while anything below it needs it. The results are those of one network at a time,
to the bit: the same modules see the same batches (but for DARTS's noise, which is drawn once for
all who share it). The store's modules are used, so networks that are bound lose their statistics
and modes: bind them again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.core.compute import is_finite
from fedtailor.core.space import Arch
from fedtailor.core.types import Examples
from fedtailor.data.batches import batch, chunks, even_chunks
from fedtailor.networks.norms import measuring
from fedtailor.networks.pieces import Piece, pieces_of
from fedtailor.networks.store import Store
from fedtailor.training.evaluate import EVALUATION_BATCH


def population_logits(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    calibration: Examples | None = None,
    kept: bool = False,
) -> Tensor:
    """Return every architecture's logits on every example: (architectures, examples, classes).

    Where that is too much to hold, `walk` gives them one architecture at a time.

    Args:
        store: the supernet's weights.
        archs: the architectures; equal ones are computed once.
        examples: the images, not augmented, in batches of at most 256.
        calibration: examples whose batch-norm statistics are used; none: those of each batch.
        kept: the statistics that the store keeps are used instead.
    """
    found = torch.empty(len(archs), len(examples), store.task.classes)
    for arch, logits in walk(store, archs, examples, calibration, kept):
        found[arch] = logits
    return found


def population_accuracies(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    calibration: Examples | None = None,
    kept: bool = False,
) -> list[float]:
    """Return every architecture's accuracy; arguments as `population_logits`."""
    found = [0.0] * len(archs)
    labels = examples.labels[examples.index]
    for arch, logits in walk(store, archs, examples, calibration, kept):
        found[arch] = (logits.argmax(1) == labels).float().mean().item()
    return found


def walk(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    calibration: Examples | None = None,
    kept: bool = False,
) -> Iterator[tuple[int, Tensor]]:
    """Yield every architecture's number and its logits; those that share a prefix together.

    Statistics that the store keeps are afterwards what they were.
    """
    if kept and (calibration is not None or not store.keeps_statistics):
        raise ValueError("a store without statistics, or calibration beside them")
    chains = [pieces_of(store.space, arch, store.task) for arch in archs]
    sources = [calibration, examples] if calibration is not None else [examples]
    states = [_batches(s, store.device, even=s is calibration) for s in sources]
    before = {} if kept else store.statistics()
    try:
        yield from _descend(store, chains, list(range(len(archs))), 0, states, kept)
    finally:
        for name, statistic in before.items():
            store.weights[name].copy_(statistic)


def _batches(examples: Examples, device: str, even: bool) -> list[Any]:
    rows = (even_chunks if even else chunks)(examples, EVALUATION_BATCH)
    return [batch(examples, part, None, device)[0] for part in rows]


def _descend(
    store: Store,
    chains: list[tuple[Piece, ...]],
    members: list[int],
    level: int,
    states: list[list[Any]],
    kept: bool,
) -> Iterator[tuple[int, Tensor]]:
    """Go on with architectures whose first `level` pieces agree; `states` is what those made.

    It is used up: dropped before the last group goes on, so that memory follows what is shared.
    """
    groups: dict[Piece, list[int]] = {}
    for member in members:
        if level == len(chains[member]):
            yield member, _finite(torch.cat(states[-1]).cpu())
        else:
            groups.setdefault(chains[member][level], []).append(member)
    left = len(groups)
    for piece, group in groups.items():
        after = _through(store.module(piece), states, kept)
        left -= 1
        if not left:
            states.clear()
        yield from _descend(store, chains, group, level + 1, after, kept)


def _finite(logits: Tensor) -> Tensor:
    if not is_finite(logits):  # argmax of no number would pass for class 0
        raise FloatingPointError("a network's outputs are not finite: training has diverged")
    return logits


@torch.inference_mode()
def _through(module: nn.Module, states: list[list[Any]], kept: bool) -> list[list[Any]]:
    """Pass batches through a module: with the statistics of the first list's, or of each batch."""
    if kept:
        module.eval()
        return [[module(state) for state in some] for some in states]
    with measuring(module):
        after = [[module(state) for state in states[0]]]
    return after + [[module(state) for state in rest] for rest in states[1:]]
