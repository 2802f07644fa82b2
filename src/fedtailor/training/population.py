"""Evaluating many architectures of one supernet: what they share is computed once.

Architectures form a trie of pieces. It is walked depth first, and what a prefix made of the
images is kept while anything below it needs it. The results are those of one network at a time,
to the bit: the same modules see the same batches (but for DARTS's noise, which is drawn once for
all who share it). The store's modules are used, and are afterwards what they were.

Batch norm takes the statistics of each batch, of at most 256 images; or those of other examples,
the calibration, measured once for every prefix; or what the store keeps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.compute import is_finite
from fedtailor.core.space import Arch
from fedtailor.core.types import Examples, Meter
from fedtailor.data.batches import batch, chunks, even_chunks
from fedtailor.networks import counting, norms
from fedtailor.networks.pieces import Piece, pieces_of
from fedtailor.networks.plans import tensors, unnamed
from fedtailor.networks.store import Store
from fedtailor.training.evaluate import EVALUATION_BATCH

Score: TypeAlias = Literal[
    "accuracy", "likelihood"
]  # the latter: mean log-probability of the truth
HELD = 4  # batches that go through the trie together: 1024 images


def population_scores(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    score: Score,
    *,
    calibration: Examples | None = None,
    kept: bool = False,
    meter: Meter | None = None,
) -> list[float]:
    """Return every architecture's score; the higher the better.

    Memory follows 1024 images and the calibration, however many examples there are.

    Args:
        store: the supernet's weights.
        archs: the architectures; equal ones are computed once.
        examples: the images, not augmented.
        score: "accuracy", or "likelihood": the mean log-probability of the true class.
        calibration: examples whose statistics are used; of no image: mean 0 and variance 1.
        kept: the statistics that the store keeps are used instead.
        meter: is charged what is computed: a shared prefix once, the calibration too.
    """
    return scores_of_kinds(
        store, archs, examples, (score,), calibration=calibration, kept=kept, meter=meter
    )[0]


def scores_of_kinds(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    kinds: Sequence[Score],
    *,
    calibration: Examples | None = None,
    kept: bool = False,
    meter: Meter | None = None,
) -> list[list[float]]:
    """Return every architecture's score of each kind, by one walk; as `population_scores`."""
    labels, rows = examples.labels[examples.index], list(chunks(examples, EVALUATION_BATCH))
    found = torch.empty(len(kinds), len(archs), len(examples))
    trie = _Trie.of(store, archs, calibration, kept, meter, again=len(rows) > HELD)
    for first in range(0, len(rows), HELD):
        held = rows[first : first + HELD]
        part = slice(int(held[0][0]), int(held[-1][-1]) + 1)
        for arch, logits in trie.walk(examples, held, None if first else calibration):
            for table, kind in zip(found, kinds, strict=True):
                table[arch, part] = _scored(logits, labels[part], kind)
    return [[each.mean().item() for each in table] for table in found]


def _scored(logits: Tensor, labels: Tensor, score: Score) -> Tensor:
    """Score each image."""
    if score == "accuracy":
        return (logits.argmax(1) == labels).float()
    return -F.cross_entropy(logits, labels, reduction="none")


def walk(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    calibration: Examples | None = None,
    kept: bool = False,
) -> Iterator[tuple[int, Tensor]]:
    """Yield every architecture's number and its logits; those that share a prefix together.

    All images go through the trie at once; arguments as `population_scores`.
    """
    trie = _Trie.of(store, archs, calibration, kept, None, again=False)
    yield from trie.walk(examples, list(chunks(examples, EVALUATION_BATCH)), calibration)


@dataclass(frozen=True)
class _Trie:
    """A population, and how batch norm is done in it."""

    store: Store
    chains: list[tuple[Piece, ...]]
    statistics: Literal["batch", "calibrated", "kept"]
    meter: Meter | None
    again: bool  # whether it will be walked more than once: then what was measured is kept
    measured: dict[tuple[int, int], norms.Buffers] = field(default_factory=dict)

    @staticmethod
    def of(
        store: Store,
        archs: Sequence[Arch],
        calibration: Examples | None,
        kept: bool,
        meter: Meter | None,
        again: bool,
    ) -> "_Trie":
        if kept and (calibration is not None or not store.keeps_statistics):
            raise ValueError("a store without statistics, or calibration beside them")
        statistics = "kept" if kept else "batch" if calibration is None else "calibrated"
        chains = [pieces_of(store.space, arch, store.task) for arch in archs]
        return _Trie(store, chains, statistics, meter, again)

    def walk(
        self, examples: Examples, rows: Sequence[Tensor], calibration: Examples | None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield all logits of some batches; the calibration is wanted the first time only."""
        measure = [] if calibration is None else _even_rows(calibration)
        states = [
            [batch(source, part, None, self.store.device)[0] for part in parts]
            for source, parts in ((calibration or examples, measure), (examples, rows))
        ]
        yield from self._descend(list(range(len(self.chains))), 0, states)

    def _descend(
        self, members: list[int], level: int, states: list[list[Any]]
    ) -> Iterator[tuple[int, Tensor]]:
        """Go on with architectures whose first `level` pieces agree; `states` is what those made.

        It is used up: dropped before the last group goes on, so that memory follows what is shared.
        """
        groups: dict[Piece, list[int]] = {}
        for member in members:
            if level == len(self.chains[member]):
                yield member, _finite(torch.cat(states[-1]).cpu())
            else:
                groups.setdefault(self.chains[member][level], []).append(member)
        left = len(groups)
        for piece, group in groups.items():
            after = self._through(piece, (group[0], level), states)
            left -= 1
            if not left:
                states.clear()
            yield from self._descend(group, level + 1, after)

    @torch.inference_mode()
    def _through(
        self, piece: Piece, place: tuple[int, int], states: list[list[Any]]
    ) -> list[list[Any]]:
        """Pass batches through a piece: those to measure, then those to judge.

        The place in the trie is told by the first architecture that comes by, and the level.
        """
        measure, judge = states
        self._charge(piece, measure + judge)
        modules = self.store.modules(piece)
        with norms.still(modules):
            if self.statistics == "kept":
                return [[], _passed(modules[0], judge)]
            parts = [module for module in modules if norms.is_norm(module)]
            if self.statistics == "batch":
                with norms.by_batch(parts):
                    return [[], _passed(modules[0], judge)]
            known = self.measured.get(place)
            with norms.lent(parts, known) as buffers:
                if known is None:
                    with norms.averaging(parts):
                        measure = _passed(modules[0], measure)
                if self.again:
                    self.measured[place] = buffers
                return [measure, _passed(modules[0], judge)]

    def _charge(self, piece: Piece, states: list[Any]) -> None:
        if self.meter is not None:
            macs, _ = counting.forward(unnamed(piece), counting.shapes_of(states[0]))
            self.meter.macs += macs * sum(len(tensors(state)[0]) for state in states)


def _passed(module: nn.Module, states: list[Any]) -> list[Any]:
    return [module(state) for state in states]


def _even_rows(examples: Examples) -> list[Tensor]:
    return list(even_chunks(examples, EVALUATION_BATCH)) if len(examples) else []


def _finite(logits: Tensor) -> Tensor:
    if not is_finite(logits):  # argmax of no number would pass for class 0
        raise FloatingPointError("a network's outputs are not finite: training has diverged")
    return logits
